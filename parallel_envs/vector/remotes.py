"""Remotes: the environments of a manager one at a time, with the messages of the pipeline this package grew from.

    envs.remotes[3].send(("reset", {"task": 17}))
    kind, observation = envs.remotes[3].recv()                        # "obs"
    envs.remotes[3].send(("step", action))                            # or {"action": action}
    kind, (observation, reward, done, info) = envs.remotes[3].recv()  # "transition"

Each `send` needs one `recv`. A missing one raises an error at once, instead of a wait without end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from gymnasium import spaces
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError
from gymnasium.spaces import Space

from parallel_envs.threads import one_thread
from parallel_envs.vector.checks import is_whole
from parallel_envs.vector.spaces import assembler, leaves

if TYPE_CHECKING:
    from parallel_envs.vector.manager import ParallelEnvManager

_WORDS = ("reset", "step", "get_attr", "seed", "close")


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


class _Request:
    """The unanswered request of one remote, its answer if that is known already, and the seed for the next reset."""

    __slots__ = ("answer", "asked", "seed")

    def __init__(self) -> None:
        self.asked: str | None = None
        self.answer: Any = None
        self.seed: int | None = None


class RemoteRequests:
    """The requests of all remotes of a manager. The manager keeps this object.

    It has no reference to the manager: with one, a manager that is no longer used would stay alive, with its workers,
    until the garbage collector runs.
    """

    def __init__(self, action_space: Space[Any], num_envs: int) -> None:
        self.leaves, self.assemble = leaves(action_space), assembler(action_space)
        self.names = action_space.spaces.keys() if isinstance(action_space, spaces.Dict) else {None}
        self.requests = [_Request() for _ in range(num_envs)]


class Remotes(Sequence["Remote"]):
    """A `Remote` for each env of a manager. It keeps the manager alive, and so does each `Remote`.

    Threads: as `Remote`.
    """

    def __init__(self, manager: ParallelEnvManager, common: RemoteRequests) -> None:
        self._manager, self._common = manager, common

    def __len__(self) -> int:
        return self._manager.num_envs

    @overload
    def __getitem__(self, index: int) -> Remote: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Remote, ...]: ...

    def __getitem__(self, index: int | slice) -> Remote | tuple[Remote, ...]:
        env = range(len(self))[index]
        if isinstance(env, range):
            return tuple(Remote(self._manager, self._common, one) for one in env)
        return Remote(self._manager, self._common, env)


class Remote:
    """The env `env` of a manager. Several remotes may have a reset or step in flight at once. A "get_attr" is answered
    at once, and can be sent only while none of them has one.

    A remote that you hold keeps its manager alive. Otherwise `del envs` ends the workers at once.

    Threads: all remotes of a manager and the manager itself together serve one thread at a time; a second one gets a
    `ConcurrentCall`.
    """

    def __init__(self, manager: ParallelEnvManager, common: RemoteRequests, env: int) -> None:
        self._manager, self._common, self._env = manager, common, env
        self._guard = manager._guard
        self._request = common.requests[env]

    @one_thread
    def send(self, request: tuple[str, Any]) -> None:
        """Send a request: `("reset", {"task": t})`, `("step", a)` or `("step", {"action": a})`,
        `("get_attr", {"name": n})`, `("seed", s)` for the next reset, or `("close", None)`, which leaves closing to the
        manager. The answer to a "get_attr" that names a method is a `RemoteMethod`: the method runs when that is
        called.
        """
        word, data = self._checked(request)
        if self._is_waiting():
            raise AlreadyPendingCallError(
                f"`send` was called on remote {self._env}, whose last request, {self._request.asked!r}, has yet to be "
                "received. Call `recv` first.",
                str(self._request.asked),
            )
        match word:
            case "reset":
                data = dict(data or {})
                tasks = [data.pop("task")] if "task" in data else None
                seeds: list[int | None] = [None] * self._manager.num_envs
                seeds[self._env] = data.pop("seed", self._request.seed)
                self._manager.send_reset([self._env], seed=seeds, options=data or None, tasks=tasks)
                self._request.seed = None
            case "step":
                action = data if self._is_action(data) else data["action"]
                parts = [(leaf, leaf.of(action)) for leaf in self._common.leaves]
                rows = [np.asarray(part)[None] if leaf.fixed else (part,) for leaf, part in parts]
                self._manager.send(self._common.assemble(rows), env_ids=[self._env])
            case "get_attr":
                self._request.answer = self._manager._look_up(data["name"], self._env)
            case "seed":
                self._request.answer = self._request.seed = int(data)
        self._request.asked = word

    @one_thread
    def recv(self, timeout: float | None = None) -> tuple[str, Any]:
        """Return the answer to the last request. Waits if it is a reset or a step."""
        if not self._is_waiting():
            raise NoAsyncCallError(
                f"`recv` was called on remote {self._env} without a `send` before it: there is nothing to wait for.",
                "send",
            )
        if self._request.asked in ("reset", "step"):
            row = self._manager.recv_env(self._env, timeout)  # if this raises, `_is_waiting` knows what is left
            asked, self._request.asked = self._request.asked, None
            return ("obs", row[0]) if asked == "reset" else ("transition", (row[0], row[1], row[2] or row[3], row[4]))
        word, self._request.asked = str(self._request.asked), None
        answer, self._request.answer = self._request.answer, None
        return word, answer

    def _is_waiting(self) -> bool:
        """Return whether an answer is to be received. Another call may have received, or raised, it since."""
        if self._request.asked in ("reset", "step"):
            return self._manager.is_away(self._env) or self._manager.closed
        return self._request.asked is not None

    def _is_action(self, data: Any) -> bool:
        """Return whether the data of a "step" is the action itself. Otherwise it must be `{"action": a}`."""
        if not isinstance(data, Mapping):
            return data is not None
        names = self._common.names
        inner = data.get("action")
        return names <= data.keys() and not (isinstance(inner, Mapping) and names <= inner.keys())

    def _checked(self, request: Any) -> tuple[str, Any]:
        """Return the word and the data of a request, or raise ValueError if they do not fit together."""
        fault = ""
        if not isinstance(request, tuple) or len(request) != 2 or request[0] not in _WORDS:
            raise ValueError(
                f"{request!r} was sent to remote {self._env}. Send a pair of one of {_WORDS} and its data."
            )
        word, data = request
        needed = {"step": "action", "get_attr": "name"}.get(word)
        has_it = needed is None or (isinstance(data, Mapping) and needed in data)
        if word == "reset" and not isinstance(data, Mapping | None):
            fault = "a dict, or None"
        elif word == "seed" and not is_whole(data):
            fault = "a whole number"
        elif not has_it and not (word == "step" and self._is_action(data)):
            fault = f"{'an action, or ' if word == 'step' else ''}{{{needed!r}: ...}}"
        if fault:
            raise ValueError(f"{request!r} was sent to remote {self._env}. Its data must be {fault}.")
        return word, data
