"""What `MultiAgentEnvManager` has from the manager beneath, as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from parallel_envs.closing import ClosedAtExit
from parallel_envs.multiagent.loading import OnJoint
from parallel_envs.vector import ParallelEnvManager


class PassedOn(ClosedAtExit):
    """Tasks, calls of the environments' methods, and the workers' lives."""

    envs: ParallelEnvManager
    """The manager underneath: each environment with all its agents is one of its environments."""

    def set_tasks(self, tasks: Sequence[Any], env_ids: int | Iterable[int] | None = None) -> None:
        """Give environments tasks, one for each, from their next episodes on."""
        self.envs.set_tasks(tasks, env_ids)

    def get_tasks(self, env_ids: int | Iterable[int] | None = None) -> list[Any]:
        """The tasks that environments have."""
        return self.envs.get_tasks(env_ids)

    def call(self, name: str, *args: Any, env_ids: int | Iterable[int] | None = None, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of the environments (or read an attribute): all, or those of `env_ids`."""
        return self.envs.call(name, *args, env_ids=env_ids, **kwargs)

    def call_async(self, name: str, /, *args: Any, env_ids: int | Iterable[int] | None = None, **kwargs: Any) -> None:
        """Begin a call. `call_wait` ends it."""
        self.envs.call_async(name, *args, env_ids=env_ids, **kwargs)

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """The results of the call that was begun."""
        return self.envs.call_wait(timeout)

    def apply(
        self,
        fn: Callable[..., Any],
        *args: Any,
        env_ids: int | Iterable[int] | None = None,
        timeout: float | None = None,
    ) -> list[Any]:
        """Return `fn(env, *args)` for each PettingZoo environment, or those of `env_ids`, as `ParallelEnvManager` does.

        An AEC environment that is played in turns is handed over as it is, the others with PettingZoo's conversion.
        """
        given: Any = fn
        return self.envs.apply(OnJoint(fn) if callable(given) else fn, *args, env_ids=env_ids, timeout=timeout)

    @property
    def ready_ids(self) -> list[int]:
        """The environments that have answered to `send` and `send_reset` and are yet to be received."""
        return self.envs.ready_ids

    def get_attr(self, name: str, env_ids: int | Iterable[int] | None = None) -> tuple[Any, ...]:
        """An attribute of each environment."""
        return self.envs.get_attr(name, env_ids)

    def set_attr(self, name: str, values: Any, env_ids: int | Iterable[int] | None = None) -> None:
        """Set an attribute of each environment."""
        self.envs.set_attr(name, values, env_ids)

    def state(self) -> npt.NDArray[Any]:
        """The global state of each environment, for those that have one."""
        return np.stack(self.envs.call("state"))

    def render(self) -> tuple[Any, ...] | None:
        """What each environment renders."""
        return self.envs.render()

    def restart(self, env_ids: int | Iterable[int] | None = None) -> None:
        """Replace the workers of these environments by fresh ones."""
        self.envs.restart(env_ids)

    def stats(self) -> list[dict[str, Any]]:
        """What each worker has done so far."""
        return self.envs.stats()

    @property
    def num_restarts(self) -> int:
        """How many times a worker or an environment has been replaced so far."""
        return self.envs.num_restarts

    @property
    def last_restart(self) -> tuple[tuple[int, ...], str] | None:
        """The environments that were replaced last, and why, in one line. None: none was."""
        return self.envs.last_restart

    @property
    def closed(self) -> bool:
        return self.envs.closed

    def close(self, timeout: float = 5.0) -> None:
        """End all workers."""
        self.envs.close(timeout=timeout)
