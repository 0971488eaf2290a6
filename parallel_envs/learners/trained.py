"""Trained agents as policies that can be named: `parallel-envs eval -p runs/spread`.

A folder is that of a run (its newest checkpoint is used), of a checkpoint, or of one agent, which then acts for every
agent. Only numbers and JSON are read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gymnasium.spaces import Space

from parallel_envs.learners.agent import ALGORITHMS, LearnerPolicy, configs_by_name
from parallel_envs.learners.checkpoint import CARRY, BadCheckpoint, form_of, load_agent, misfits
from parallel_envs.learners.config import BadSettings, read_config
from parallel_envs.learners.parameters import AgentParameters
from parallel_envs.learners.run_folder import newest_checkpoint


class TrainedAgent:
    """Agent that `load` reads from a folder, for `agent` with these spaces. Its policy takes the most likely action."""

    deterministic = True

    def __init__(
        self, agent: Any, observation_space: Space[Any], action_space: Space[Any], seed: int | None = None
    ) -> None:
        self.agent, self._spaces, self._seed = agent, (observation_space, action_space), seed or 0
        self._policy: LearnerPolicy | None = None

    def load(self, folder: str | Path) -> None:
        """Load the agent in this folder. Raises BadCheckpoint, FileNotFoundError."""
        where = newest_checkpoint(folder) or Path(folder)
        state = load_agent(where, self.agent, with_memory=False)
        try:
            config = read_config(state["config"], "config", configs_by_name())
            algorithm = ALGORITHMS[type(config)](config, *self._spaces, agent=self.agent)
            parameters = AgentParameters(algorithm, 0)
            if odd := misfits(state, {"form": form_of(parameters), "arrays": parameters.arrays()}):
                raise ValueError(f"it is of another architecture ({'; '.join(odd)}).")
            parameters.load({name: array for name, array in state["arrays"].items() if name != CARRY})
        except (BadSettings, TypeError, ValueError) as error:
            raise BadCheckpoint(f"{where} does not fit {self.agent!r} of this environment: {error}") from error
        algorithm.explore(parameters.module, state["counters"]["steps"])
        how: dict[str, Any] = {"seed": self._seed, "deterministic": self.deterministic}
        self._policy = LearnerPolicy(parameters.module.actor, algorithm.encoder, algorithm.head, **how)

    def agent_policy(self, agent: Any = None) -> LearnerPolicy:
        """Return the policy. Each call returns the same one, which holds the memory of the episode."""
        if self._policy is None:
            raise RuntimeError(f"{self.agent!r} has learnt nothing yet. Call load(folder) first.")
        return self._policy


class SamplingAgent(TrainedAgent):
    """Trained agent that samples actions, as during training.

    Name it `class=parallel_envs.learners.trained:SamplingAgent,data=runs/spread`.
    """

    deterministic = False
