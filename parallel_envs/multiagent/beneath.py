"""The manager under `MultiAgentEnvManager`, which speaks to the user of the one that the user has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from parallel_envs.multiagent.loading import JointFactory
from parallel_envs.vector import ParallelEnvManager


class ManagerBeneath(ParallelEnvManager):
    """Each environment with all its agents is one of its environments."""

    _known_as = "MultiAgentEnvManager"

    def __init__(self, factories: Sequence[JointFactory], **options: Any) -> None:
        try:
            super().__init__(factories, **options)
        except RuntimeError as error:
            if type(error) is not RuntimeError:  # an environment's own, or a worker's
                raise
            raise _told_of_agents(error) from None

    def __repr__(self) -> str:
        return super().__repr__().replace(type(self).__name__, ParallelEnvManager.__name__, 1)


def _told_of_agents(error: RuntimeError) -> RuntimeError:
    """Environments differ: the same error, with advice that helps where they have agents."""
    fact = str(error)
    for advice in (" With observation_mode=", " To batch actions,"):
        fact = fact.partition(advice)[0]
    return RuntimeError(
        f"{fact} The environments of one manager must have the same agents with equal spaces: open one manager for "
        "each kind. (Only environments without possible_agents may differ in their agents and spaces.)"
    )
