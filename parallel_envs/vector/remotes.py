"""Remotes: the environments of a manager one at a time, with the messages of the pipeline this package grew from.

    envs.remotes[3].send(("reset", {"task": 17}))
    kind, observation = envs.remotes[3].recv()                        # "obs"
    envs.remotes[3].send(("step", action))                            # or {"action": action}
    kind, (observation, reward, done, info) = envs.remotes[3].recv()  # "transition"

Each `send` needs one `recv`. A missing one raises an error at once, instead of a wait without end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError
from gymnasium.spaces import Space

from parallel_envs.checks import is_whole
from parallel_envs.threads import one_thread
from parallel_envs.vector.shared_arrays import assembler, leaves

if TYPE_CHECKING:
    from parallel_envs.vector.manager import ParallelEnvManager

_REQUESTS = (
    "('reset', a dict or None), ('step', an action, or {'action': ...}), ('get_attr', {'name': ...}), "
    "('seed', a whole number) or ('close', None)"
)


class RemoteMethod:
    """Method `name` of env `env` of a manager. A call runs in the env's worker; an error of the method is raised here.
    Reading a method through a proxy of an env returns this object and runs nothing. Calls need an idle manager.
    """

    def __init__(self, manager: ParallelEnvManager, env: int, name: str) -> None:
        self._manager, self._env = manager, env
        self.__name__ = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._manager._call_one(self._env, self.__name__, args, kwargs)

    def __repr__(self) -> str:
        return f"<method {self.__name__!r} of env {self._env}, in its worker>"


class RemoteRequests:
    """Requests of remotes: by env, the unanswered request, its answer if known, and the seed for the next reset.

    The manager keeps this object. It has no reference to the manager: with one, a manager that is no longer used would
    stay alive, with its workers, until the garbage collector runs.
    """

    def __init__(self, action_space: Space[Any]) -> None:
        self.leaves, self.assemble = leaves(action_space), assembler(action_space)
        self.names = action_space.spaces.keys() if isinstance(action_space, spaces.Dict) else {None}
        self.asked: dict[int, str] = {}
        self.answers: dict[int, Any] = {}
        self.seeds: dict[int, int] = {}


class Remote:
    """The env `env` of a manager. Several remotes may have a reset or step in flight at once. A "get_attr" is answered
    at once, and can be sent only while none of them has one. A remote that you hold keeps its manager alive. Otherwise
    `del envs` ends the workers at once.

    Threads: all remotes of a manager and the manager itself together serve one thread at a time; a second one gets a
    `ConcurrentCall`.
    """

    def __init__(self, manager: ParallelEnvManager, common: RemoteRequests, env: int) -> None:
        self._manager, self._common, self._env = manager, common, env
        self._guard = manager._guard

    @one_thread
    def send(self, request: tuple[str, Any]) -> None:
        """Send a request: `("reset", {"task": t})`, `("step", a)` or `("step", {"action": a})`, `("get_attr", {"name":
        n})`, `("seed", s)` for the next reset, or `("close", None)`, which leaves closing to the manager. The answer to
        a "get_attr" that names a method is a `RemoteMethod`: the method runs when that is called.
        """
        common, env = self._common, self._env
        if self._is_waiting():
            raise AlreadyPendingCallError(
                f"`send` was called on remote {env}, whose last request, {common.asked[env]!r}, has yet to be "
                "received. Call `recv` first.",
                common.asked[env],
            )
        given: Any = request
        match given if isinstance(given, tuple) else None:  # a list would match the patterns too
            case ("reset", data) if isinstance(data, Mapping | None):
                options = dict(data or {})
                tasks = [options.pop("task")] if "task" in options else None
                seed = options.pop("seed", common.seeds.get(env))
                self._manager.send_reset([env], seed=[seed], options=options or None, tasks=tasks)
                common.seeds.pop(env, None)
            case ("step", data) if self._is_action(data) or (isinstance(data, Mapping) and "action" in data):
                action = data if self._is_action(data) else data["action"]
                parts = [(leaf, leaf.of(action)) for leaf in common.leaves]
                rows = [np.asarray(part)[None] if leaf.fixed else (part,) for leaf, part in parts]
                self._manager.send(common.assemble(rows), env_ids=[env])
            case ("get_attr", {"name": name}):
                common.answers[env] = self._manager._look_up(name, env)
            case ("seed", seed) if is_whole(seed):
                common.answers[env] = common.seeds[env] = int(seed)
            case ("close", _):
                pass
            case _:
                raise ValueError(f"{request!r} was sent to remote {env}. Send one of these: {_REQUESTS}.")
        common.asked[env] = given[0]

    @one_thread
    def recv(self, timeout: float | None = None) -> tuple[str, Any]:
        """Return the answer to the last request. Waits if it is a reset or a step."""
        asked, env = self._common.asked, self._env
        if not self._is_waiting():
            raise NoAsyncCallError(
                f"`recv` was called on remote {env} without a `send` before it: there is nothing to wait for.", "send"
            )
        if asked[env] not in ("reset", "step"):
            return asked.pop(env), self._common.answers.pop(env, None)
        row = self._manager.recv_env(env, timeout)  # if this raises, `_is_waiting` knows what is left
        if asked.pop(env) == "reset":
            return "obs", row[0]
        return "transition", (row[0], row[1], row[2] or row[3], row[4])

    def _is_waiting(self) -> bool:
        """Return whether an answer is to be received. Another call may have received, or raised, it since."""
        asked = self._common.asked.get(self._env)
        if asked in ("reset", "step"):
            return self._manager.is_away(self._env) or self._manager.closed
        return asked is not None

    def _is_action(self, data: Any) -> bool:
        """Return whether the data of a "step" is the action itself. Otherwise it must be `{"action": a}`."""
        if not isinstance(data, Mapping):
            return data is not None
        names = self._common.names
        inner = data.get("action")
        return names <= data.keys() and not (isinstance(inner, Mapping) and names <= inner.keys())
