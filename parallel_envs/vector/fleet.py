"""The environments of a manager and the workers that hold them: how they are set up, asked and heard.

The manager above knows Gymnasium's interface and its states; the pool below knows workers. This is what lies between:
which worker holds which env, where the arrays are, and what a ticket's replies mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.error import CustomSpaceError
from gymnasium.spaces import Space
from gymnasium.vector import AutoresetMode

from parallel_envs.engine import (
    HOST,
    Call,
    Failure,
    PoolSettings,
    SharedBlock,
    Ticket,
    Unpicklable,
    open_pool,
    unpicklable_part,
)
from parallel_envs.errors import StepTimeout
from parallel_envs.vector.actions import ActionWriter
from parallel_envs.vector.buffers import (
    AUTORESET_SECONDS,
    MESSAGE_STEP_SECONDS,
    NOT_STEPPED,
    RESET_SECONDS,
    Buffers,
    Plan,
)
from parallel_envs.vector.failures import env_error, step_timeout, worker_died
from parallel_envs.vector.infos import Info, InfoReader
from parallel_envs.vector.layout import Leaf, assembler, leaves, slices, unknown_parts
from parallel_envs.vector.registry import Registrations
from parallel_envs.vector.slice import Description, EnvSlice, ResetRequest
from parallel_envs.vector.spaces import batched_action_space, batched_observation_space
from parallel_envs.vector.stepping import AnyEnv, News, bell_argument

ObservationMode = str | Space[Any] | tuple[Space[Any], Space[Any]]


class EnvFleet:
    """Envs `0 .. len(factories) - 1` in the workers of a pool."""

    def __init__(
        self,
        factories: Sequence[Callable[[], AnyEnv]],
        num_workers: int,
        settings: PoolSettings,
        *,
        autoreset_mode: AutoresetMode,
        observation_mode: ObservationMode,
        shared_memory: bool | None,
        num_sets: int,
    ) -> None:
        self.slices = slices(len(factories), num_workers)
        self._owner = [worker for worker, held in enumerate(self.slices) for _ in held]
        self._sizes = np.array([len(held) for held in self.slices])
        self._asked = np.zeros(num_workers, np.int64)
        self._local = settings.backend != "process"
        self.pool = open_pool(num_workers, settings)
        self._block: SharedBlock | None = None
        try:
            self._key = self.pool.new_key()
            self._build(factories, autoreset_mode)
            self._agree_on_spaces(observation_mode)
            self._lay_out(shared_memory, num_sets)
        except BaseException:
            self.close(2.0)
            raise

    # ---- setting up -----------------------------------------------------------------------------------------------

    def _build(self, factories: Sequence[Callable[[], AnyEnv]], mode: AutoresetMode) -> None:
        registrations = None if self._local else Registrations.here()
        calls = {
            worker: Call(
                HOST,
                "build",
                (self._key, EnvSlice, held.start, [factories[env] for env in held], mode, registrations),
                {"copies": self._local},
            )
            for worker, held in enumerate(self.slices)
        }
        try:
            built = self.pool.send(calls)
        except Unpicklable as error:
            raise _unpicklable_factory(factories, error) from error
        self.pool.wait(built)
        self.check(built, "its construction")
        described = self.pool.call_all(self._key, "describe")
        self.pool.wait(described)
        self.check(described, "its construction")
        self._descriptions: list[Description] = [described.replies[worker].value for worker in self.pool.all_workers]

    def _agree_on_spaces(self, mode: ObservationMode) -> None:
        first = self._descriptions[0]
        self.metadata, self.render_mode = first.metadata, first.render_mode
        observation = [space for told in self._descriptions for space in told.observation_spaces]
        action = [space for told in self._descriptions for space in told.action_spaces]
        self.observation_spaces = batched_observation_space(observation, mode)
        self.action_spaces = batched_action_space(action)

    def _lay_out(self, shared_memory: bool | None, num_sets: int) -> None:
        single, action = self.observation_spaces[0], self.action_spaces[0]
        if shared_memory:
            _check_known(single)
        self._leaves = leaves(single)
        piped = tuple(Leaf(leaf.path, None) for leaf in self._leaves) if shared_memory is False else self._leaves
        plan = Plan.of(piped, action, len(self._owner), self.pool.num_workers, num_sets)
        self._block = SharedBlock.create(plan.num_bytes)
        self.buffers = Buffers(plan, self._block)
        self.actions = ActionWriter(self.buffers)
        self._info_reader = InfoReader(self.buffers.info_schemas, self.buffers.info_rows)
        self._assemble = assembler(single)
        self._sets = [self._caller_arrays(which) for which in range(num_sets)]
        calls = {
            worker: Call(self._key, "attach", (plan, self._block, action, worker)) for worker in self.pool.all_workers
        }
        attached = self.pool.send(calls)
        self.pool.wait(attached)
        self.check(attached, "its construction")

    def _caller_arrays(self, which_set: int) -> list[Any]:
        """For each leaf what the caller reads: a shared array, a private one, or a list with one item an env."""
        arrays = self.buffers.observations[which_set]
        count = len(self._owner)
        return [
            array if array is not None else np.zeros((count, *leaf.shape), leaf.dtype) if leaf.fixed else [None] * count
            for leaf, array in zip(self._leaves, arrays, strict=True)
        ]

    # ---- asking ---------------------------------------------------------------------------------------------------

    def step(self, argument: int, loose: Mapping[int, list[Any]] | None) -> Ticket:
        """Step all envs."""
        self._asked += self._sizes
        if loose is None:
            return self.pool.ring(self._key, argument)
        calls = {
            worker: Call(self._key, "step_with", (argument, {env: loose[env] for env in held}))
            for worker, held in enumerate(self.slices)
        }
        return self.pool.send(calls)

    def step_env(self, env: int, which_set: int, code: int, loose: Mapping[int, list[Any]] | None) -> Ticket:
        """Step one env. The ticket's label is its number."""
        worker = self._owner[env]
        self._asked[worker] += 1
        argument = bell_argument(which_set, code, env - self.slices[worker].start)
        if loose is None:
            return self.pool.ring(self._key, argument, (worker,), label=env)
        return self.pool.send({worker: Call(self._key, "step_with", (argument, {env: loose[env]}))}, label=env)

    def reset(self, requests: Sequence[ResetRequest], which_set: int) -> Ticket:
        """Reset some envs. The ticket's label lists them."""
        calls = {
            worker: Call(self._key, "reset", ([request for request in requests if request.env in held], which_set))
            for worker, held in self._holders(request.env for request in requests)
        }
        return self.pool.send(calls, label=[request.env for request in requests])

    def call(self, envs: Sequence[int], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Ticket:
        """Call a method of some envs. Each worker replies with a dict by env."""
        calls = {
            worker: Call(self._key, "call", ([env for env in envs if env in held], name, args, kwargs))
            for worker, held in self._holders(envs)
        }
        return self.pool.send(calls)

    def set_attr(self, name: str, values: Mapping[int, Any]) -> Ticket:
        """Set an attribute of some envs. Each worker replies with a dict of failures by env."""
        calls = {
            worker: Call(self._key, "set_attr", (name, {env: values[env] for env in values if env in held}))
            for worker, held in self._holders(values)
        }
        return self.pool.send(calls)

    def _holders(self, envs: Iterable[int]) -> list[tuple[int, range]]:
        return [(worker, self.slices[worker]) for worker in sorted({self._owner[env] for env in envs})]

    # ---- hearing --------------------------------------------------------------------------------------------------

    def check(self, ticket: Ticket, doing: str) -> None:
        """Raise what the replies report: a worker's death first, then the envs' errors."""
        failures: dict[int, Failure] = {}
        for worker, reply in ticket.replies.items():
            if reply.death is not None:
                raise worker_died(reply.death, self.slices[worker], doing)
            if reply.failure is not None:
                failures[self.slices[worker].start] = reply.failure
            elif isinstance(reply.value, News):
                failures |= reply.value.failures
        if failures:
            raise env_error(failures, doing)

    def timeout(self, doing: str, seconds: float | None, envs: Sequence[int]) -> StepTimeout:
        return step_timeout(doing, seconds, sorted({self._owner[env] for env in envs}), envs)

    def envs_of(self, ticket: Ticket) -> list[int]:
        """The envs whose workers still owe a reply."""
        return [env for worker in sorted(ticket.waiting) for env in self.slices[worker]]

    def infos(self, envs: npt.NDArray[np.intp] | None, ticket: Ticket, *, scatter: bool = False) -> Info:
        """The infos that came with a ticket. `scatter`: rows of all envs, though only `envs` have something to say."""
        news = [reply.value for reply in ticket.replies.values() if isinstance(reply.value, News)]
        if scatter and envs is not None:
            silent = np.ones(len(self._owner), np.bool_)
            silent[envs] = False
            self.buffers.info_schemas[silent] = 0
            envs = None
        return self._take(news, envs)

    def rows(
        self, envs: npt.NDArray[np.intp], which_set: int, tickets: Sequence[Ticket]
    ) -> tuple[Any, npt.NDArray[np.float64], npt.NDArray[np.bool_], npt.NDArray[np.bool_], Info]:
        """What these envs returned from a step, row by row."""
        for ticket in tickets:
            if ticket.replies:
                self.check(ticket, "step")
        news = [reply.value for ticket in tickets for reply in ticket.replies.values()]
        infos = self._take([one for one in news if isinstance(one, News)], envs)
        observations = self._assemble(
            [
                tuple(column[env] for env in envs) if isinstance(column, list) else column[envs]
                for column in self._sets[which_set]
            ]
        )
        buffers = self.buffers
        return observations, buffers.rewards[envs], buffers.terminated[envs], buffers.truncated[envs], infos

    def _take(self, news: Sequence[News], envs: npt.NDArray[np.intp] | None) -> Info:
        """Take in what came by pipe, and batch the infos."""
        pickled: dict[int, Info] = {}
        for one in news:
            for schema in one.schemas:
                self._info_reader.learn(schema)
            pickled |= one.infos
            for env, values in one.leaves.items():
                self._place(env, values)
        return self._info_reader.batch(envs, pickled)

    def _place(self, env: int, values: Sequence[Any]) -> None:
        """Leaves of an observation that came by pipe: they go into every set, so it does not matter which is read."""
        for columns, shared in zip(self._sets, self.buffers.observations, strict=True):
            loose = iter(values)
            for position, array in enumerate(shared):
                if array is None:
                    columns[position][env] = next(loose)

    def observations(self, which_set: int, *, copied: bool) -> Any:
        """The latest observation of every env."""
        columns = self._sets[which_set]
        return self._assemble(
            [tuple(column) if isinstance(column, list) else column.copy() if copied else column for column in columns]
        )

    def move_rows(self, before: int, after: int, rows: npt.NDArray[np.bool_]) -> None:
        """Copy rows of observations from one set to another."""
        for source, target in zip(self._sets[before], self._sets[after], strict=True):
            if isinstance(source, np.ndarray):
                target[rows] = source[rows]

    # ---- the workers ----------------------------------------------------------------------------------------------

    def stats(self) -> list[dict[str, Any]]:
        return [self._stats_of(worker) for worker in self.pool.all_workers]

    def _stats_of(self, worker: int) -> dict[str, Any]:
        counters, meters = self.buffers.counters[worker], self.pool.meters(worker)
        return {
            "worker": worker,
            "pid": self.pool.pid(worker),
            "env_ids": tuple(self.slices[worker]),
            "steps": int(self._asked[worker] - counters[NOT_STEPPED]),
            "step_seconds": meters.bell_seconds - float(counters[AUTORESET_SECONDS] - counters[MESSAGE_STEP_SECONDS]),
            "reset_seconds": float(counters[RESET_SECONDS] + counters[AUTORESET_SECONDS]),
            "wait_seconds": meters.wait_seconds,
            "idle_seconds": meters.idle_seconds,
            "restarts": 0,
            "bytes": meters.num_bytes,
        }

    def close(self, timeout: float) -> None:
        self.pool.close(timeout)
        if self._block is not None:
            self._block.close()


def _check_known(space: Space[Any]) -> None:
    for part in unknown_parts(space):
        raise ValueError(
            f"shared_memory=True was given, but Gymnasium does not know spaces of class {type(part).__name__}, so "
            "their values cannot lie in shared memory. Leave shared_memory out: such parts then travel by pipe."
        ) from CustomSpaceError(f"unknown space {part!r}")


def _unpicklable_factory(factories: Sequence[Any], error: Unpicklable) -> TypeError:
    for index, factory in enumerate(factories):
        where = unpicklable_part(factory, f"env_fns[{index}]")
        if "->" in where or "." in where or "[" in where.removeprefix(f"env_fns[{index}]"):
            return Unpicklable(
                f"{where} cannot be pickled, so it cannot travel to a worker process. Make it inside the function that "
                f"makes the environment, or use backend='thread'. ({error.__cause__!r})"
            )
    return error
