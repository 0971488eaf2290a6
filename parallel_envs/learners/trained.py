"""Agents that have learnt, as policies to be given by name: `parallel-envs eval -p runs/spread`.

A folder is a run's (its newest checkpoint counts), a checkpoint, or that of one agent, which then is every agent's
policy. Nothing but numbers and JSON is read.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from gymnasium.spaces import Space

from parallel_envs.learners.acting import LearnerPolicy
from parallel_envs.learners.algorithm_settings import read_config
from parallel_envs.learners.brain import Brain
from parallel_envs.learners.checkpoints import BadCheckpoint, load_agent
from parallel_envs.learners.forms import OF_THE_MOMENT, form_of, misfits
from parallel_envs.learners.learner import ALGORITHMS, configs_by_name
from parallel_envs.learners.runs import newest_checkpoint
from parallel_envs.learners.settings import BadSettings


class TrainedAgent:
    """An agent that `load` finds in a folder. Its policy takes the action that it has learnt to be best.

    Args:
        agent: Whose policy it is to be.
        observation_space: Its own.
        action_space: The same.
        seed: Where draws begin.
    """

    deterministic = True

    def __init__(
        self, agent: Any, observation_space: Space[Any], action_space: Space[Any], seed: int | None = None
    ) -> None:
        self.agent, self._spaces, self._seed = agent, (observation_space, action_space), seed or 0
        self._policy: LearnerPolicy | None = None

    def load(self, folder: str | Path) -> None:
        """Become the agent in this folder. Raises BadCheckpoint, FileNotFoundError."""
        where = newest_checkpoint(folder) or Path(folder)
        state = load_agent(where, self.agent, with_memory=False)
        try:
            config = read_config(state["config"], "config", configs_by_name())
            algorithm = ALGORITHMS[type(config)](config, *self._spaces, agent=self.agent)
            brain = Brain(algorithm, 0)
            if odd := misfits(state, {"form": form_of(brain), "arrays": brain.arrays()}):
                raise ValueError(f"it is of another architecture ({'; '.join(odd)}).")
            brain.load({name: array for name, array in state["arrays"].items() if name not in OF_THE_MOMENT})
        except (BadSettings, TypeError, ValueError) as error:
            raise BadCheckpoint(f"{where} does not fit {self.agent!r} of this environment: {error}") from error
        algorithm.explore(brain.module, state["counters"]["steps"])
        actor = copy.deepcopy(brain.module.actor)
        self._policy = LearnerPolicy(
            actor, algorithm.sight, algorithm.head, seed=self._seed, deterministic=self.deterministic
        )

    def agent_policy(self, agent: Any = None) -> LearnerPolicy:
        """Its policy, the same each time: what it remembers of an episode is in it."""
        if self._policy is None:
            raise RuntimeError(f"{self.agent!r} has learnt nothing yet. Call load(folder) first.")
        return self._policy


class SamplingAgent(TrainedAgent):
    """Its policy draws actions, as it did while it learnt.

    By name: `class=parallel_envs.learners.trained:SamplingAgent,data=runs/spread`.
    """

    deterministic = False
