"""Evaluation: episodes of missions with policies, with the same numbers for any number of workers.

`evaluate` (evaluate.py) checks its arguments and starts worker processes (running.py), which play episodes (episode.py)
with copies of the policies (policies.py). The records of the episodes are an `EvaluationResult` (records.py).
"""

from parallel_envs.evaluation.evaluate import NotSaved, Progress, evaluate
from parallel_envs.evaluation.missions import Mission, missions_of
from parallel_envs.evaluation.policies import Candidate, candidates_of
from parallel_envs.evaluation.records import BadEvaluation, EpisodeRecord, EvaluationResult, Failure, Trajectory

__all__ = [
    "BadEvaluation",
    "Candidate",
    "EpisodeRecord",
    "EvaluationResult",
    "Failure",
    "Mission",
    "NotSaved",
    "Progress",
    "Trajectory",
    "candidates_of",
    "evaluate",
    "missions_of",
]
