"""Missions x episodes x agents under one budget of workers, with the same numbers for any number of them.

Start with `evaluating.py` (`evaluate`). An `Order` (`work.py`) is an episode to be played; a worker's `Player`
(`player.py`) plays it (`episode.py`) with copies of its policies (`originals.py`); a `Crew` (`crew.py`) keeps the
workers busy with the `Work` that `running.py` has for it.
"""

from parallel_envs.evaluation.candidates import Candidate, candidates_of
from parallel_envs.evaluation.evaluating import Progress, evaluate
from parallel_envs.evaluation.mission_names import missions_of
from parallel_envs.evaluation.missions import Mission
from parallel_envs.evaluation.mistakes import BadEvaluation
from parallel_envs.evaluation.records import EpisodeRecord, EvaluationResult, Failure, Trajectory
from parallel_envs.evaluation.resuming import NotSaved

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
