"""The environments of a manager as one batch: what is asked of them, and what they return.

The manager above knows Gymnasium's interface and its states; the crew below knows which worker holds which env. This is
what lies between: where the arrays are, and what a ticket's replies mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.error import CustomSpaceError
from gymnasium.spaces import Space
from gymnasium.vector import AutoresetMode

from parallel_envs.engine import (
    Call,
    PendingRequest,
    PoolSettings,
    SharedBlock,
    advice_on_too_many_files,
    dump_request,
)
from parallel_envs.vector.actions import ActionWriter
from parallel_envs.vector.buffers import (
    AUTORESET_SECONDS,
    MESSAGE_STEP_SECONDS,
    NOT_STEPPED,
    RESET_SECONDS,
    Buffers,
    Plan,
)
from parallel_envs.vector.crew import Attachment, Crew
from parallel_envs.vector.infos import Info, InfoReader
from parallel_envs.vector.layout import assembler, leaves, unknown_parts
from parallel_envs.vector.slice import Description
from parallel_envs.vector.snapshots import snapshot, unpacked
from parallel_envs.vector.spaces import batched_action_space, batched_observation_space
from parallel_envs.vector.stepping import AnyEnv, News, ResetRequest, bell_argument
from parallel_envs.vector.tasking import NO_TASK, UNSAID, TaskSettings

ObservationMode = str | Space[Any] | tuple[Space[Any], Space[Any]]
Rows = tuple[Any, npt.NDArray[np.float64], npt.NDArray[np.bool_], npt.NDArray[np.bool_]]


class EnvFleet:
    """Envs `0 .. len(factories) - 1`, their arrays, and the crew that holds them."""

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
        start_timeout: float | None,
        tasks: TaskSettings,
        preload: Sequence[str] = (),
    ) -> None:
        self.num_envs = len(factories)
        self._block: SharedBlock | None = None
        self.crew = Crew(factories, num_workers, settings, autoreset_mode, start_timeout, tasks, preload)
        self.pool = self.crew.pool
        self._full_steps = 0
        self._asked = [0] * num_workers
        try:
            told = self.crew.build(self.pool.all_workers)
            self._agree_on_spaces([told[worker] for worker in self.pool.all_workers], observation_mode)
            self._lay_out(shared_memory, num_sets)
        except BaseException:
            self.close(2.0)
            raise

    def _agree_on_spaces(self, told: Sequence[Description], mode: ObservationMode) -> None:
        self.metadata, self.render_mode = told[0].metadata, told[0].render_mode
        self.task_ways = [way for one in told for way in one.task_ways]
        observation = [space for one in told for space in one.observation_spaces]
        action = [space for one in told for space in one.action_spaces]
        self.observation_spaces = batched_observation_space(observation, mode)
        self.action_spaces = batched_action_space(action)

    def _lay_out(self, shared_memory: bool | None, num_sets: int) -> None:
        single, action = self.observation_spaces[0], self.action_spaces[0]
        if shared_memory:
            _check_known(single)
        self._leaves = leaves(single)
        parts = tuple(replace(leaf, piped=True) for leaf in self._leaves) if shared_memory is False else self._leaves
        plan = Plan.of(parts, action, self.num_envs, self.pool.num_workers, num_sets)
        with advice_on_too_many_files():
            self._block = SharedBlock.create(plan.num_bytes)
        self.buffers = Buffers(plan, self._block)
        self.buffers.rows["task_id"] = NO_TASK
        self.buffers.rows["episode_index"] = -1
        self._task_ids, self._episodes = self.buffers.rows["task_id"], self.buffers.rows["episode_index"]
        self._everyone_has_one = False
        self._everyone = np.ones(self.num_envs, np.bool_)
        self.actions = ActionWriter(self.buffers, action)
        self._info_reader = InfoReader(self.buffers.info_schemas, self.buffers.info_rows)
        self._assemble = assembler(single)
        self._sets = [self._caller_columns(which) for which in range(num_sets)]
        self.crew.attach(Attachment(plan, self._block, action), self.pool.all_workers)

    def _caller_columns(self, which_set: int) -> list[Any]:
        """For each leaf what the caller reads: a shared array, a private one, or a list with one item an env."""
        return [
            array
            if array is not None
            else np.zeros((self.num_envs, *leaf.shape), leaf.dtype)
            if leaf.fixed
            else [None] * self.num_envs
            for leaf, array in zip(self._leaves, self.buffers.observations[which_set], strict=True)
        ]

    # ---- asking ---------------------------------------------------------------------------------------------------

    def step(self, argument: int, loose: Mapping[int, list[Any]] | None) -> PendingRequest:
        """Step all envs."""
        if loose is None:
            ticket = self.pool.ring(self.crew.key, argument)
        else:
            calls = {
                worker: Call(self.crew.key, "step_with", (argument, {env: loose[env] for env in held}))
                for worker, held in enumerate(self.crew.slices)
            }
            ticket = self.pool.send(calls)
        self._full_steps += 1
        return ticket

    def step_envs(
        self, envs: Sequence[int], which_set: int, code: int, loose: Mapping[int, list[Any]] | None
    ) -> list[PendingRequest]:
        """Step some envs, each by itself: a ticket for each, whose label is its number.

        Call `check_loose` first: a part that cannot travel must be refused before any env is asked.
        """
        bells = [self._bell_of(env, which_set, code) for env in envs]
        for worker, _, _ in bells:
            self._asked[worker] += 1
        if loose is None:
            return self.pool.ring_each(self.crew.key, bells)
        return [
            self.pool.send({worker: Call(self.crew.key, "step_with", (argument, {env: loose[env]}))}, label=env)
            for worker, argument, env in bells
        ]

    def _bell_of(self, env: int, which_set: int, code: int) -> tuple[int, int, int]:
        worker = self.crew.owner[env]
        return worker, bell_argument(which_set, code, env - self.crew.slices[worker].start), env

    def report_lost(self, envs: Sequence[int], which_set: int) -> PendingRequest:
        """Ask revived envs for the rows of a step that their predecessors did not live to answer."""
        return self._ask_holders("report_lost", envs, lambda held: ([env for env in envs if env in held], which_set))

    def reset(self, requests: Sequence[ResetRequest], which_set: int) -> PendingRequest:
        """Reset some envs. The ticket's label lists them."""
        envs = [request.env for request in requests]
        return self._ask_holders(
            "reset", envs, lambda held: ([request for request in requests if request.env in held], which_set)
        )

    def call(self, envs: Sequence[int], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> PendingRequest:
        """Call a method of some envs. Each worker replies with a dict by env."""
        return self._ask_holders("call", envs, lambda held: ([env for env in envs if env in held], name, args, kwargs))

    def apply(self, envs: Sequence[int], function: Callable[..., Any], args: tuple[Any, ...]) -> PendingRequest:
        """Run a function on some envs. Each worker replies with a dict by env."""
        return self._ask_holders("apply", envs, lambda held: ([env for env in envs if env in held], function, args))

    def look_up(self, env: int, name: str) -> PendingRequest:
        """Read an attribute of one env without calling it. Its worker replies with a dict by env."""
        return self._ask_holders("look_up", [env], lambda held: (env, name))

    def set_attr(self, name: str, values: Mapping[int, Any]) -> PendingRequest:
        """Set an attribute of some envs. Each worker replies with a dict of failures by env."""
        return self._ask_holders(
            "set_attr", values, lambda held: (name, {env: values[env] for env in values if env in held})
        )

    def set_tasks(self, tasks: Mapping[int, Any]) -> PendingRequest:
        """Give envs tasks from their next episodes on."""
        return self._ask_holders("set_tasks", tasks, lambda held: ({env: tasks[env] for env in tasks if env in held},))

    def get_tasks(self, envs: Sequence[int]) -> PendingRequest:
        """Ask envs for their tasks. Each worker replies with a dict by env."""
        return self._ask_holders("get_tasks", envs, lambda held: ([env for env in envs if env in held],))

    def tell_all(self, method: str, *args: Any) -> None:
        """Send every worker a message whose reply nobody needs: it is done before whatever is asked next."""
        self.pool.forget(self.pool.call_all(self.crew.key, method, *args))

    def _ask_holders(
        self, method: str, envs: Iterable[int], arguments: Callable[[range], tuple[Any, ...]]
    ) -> PendingRequest:
        """Send the workers that hold these envs a message, each with its own arguments."""
        envs = list(envs)
        calls = {worker: Call(self.crew.key, method, arguments(held)) for worker, held in self.crew.holders(envs)}
        return self.pool.send(calls, label=envs)

    # ---- hearing --------------------------------------------------------------------------------------------------

    def take_in(self, tickets: Iterable[PendingRequest], which_set: int) -> dict[int, Info]:
        """Take in what came by pipe; returns the infos among it, by env. Must be done even if an error follows: what a
        worker has told once it does not tell again.
        """
        pickled: dict[int, Info] = {}
        tickets = list(tickets)
        self.learn(tickets)
        for ticket in tickets:
            for reply in ticket.replies.values():
                if isinstance(reply.value, News):
                    pickled |= self._take_in_one(reply.value, which_set)
        return pickled

    def learn(self, tickets: Iterable[PendingRequest]) -> None:
        """Learn the schemas that these tickets announce. Infos that come with other tickets may be written by them."""
        for ticket in tickets:
            for reply in ticket.replies.values():
                for schema in reply.value.schemas if isinstance(reply.value, News) else ():
                    self._info_reader.learn(schema)

    def _take_in_one(self, news: News, which_set: int) -> dict[int, Info]:
        for env, values in news.leaves.items():
            loose = iter(unpacked(values))
            for position, array in enumerate(self.buffers.observations[which_set]):
                if array is None:
                    self._sets[which_set][position][env] = next(loose)
        return {env: unpacked(info) for env, info in news.infos.items()}

    def infos(self, pickled: Mapping[int, Info], only: Sequence[int] | None = None) -> Info:
        """The infos of all envs, batched. `only`: those of the others are older, and are left out."""
        if only is not None:
            self._leave_out_all_but(only)
        return self._info_reader.batch(None, pickled)

    def infos_list(self, pickled: Mapping[int, Info], only: Sequence[int] | None = None, *, tasks: bool) -> list[Info]:
        """The same as one dict an env, as the env gave it. With `tasks`, it says which task and episode it is from."""
        if only is not None:
            self._leave_out_all_but(only)
        infos = self._info_reader.each(range(self.num_envs), pickled)
        for env in (range(self.num_envs) if only is None else only) if tasks else ():
            infos[env] = {**self.task_info(env), **infos[env]}
        return infos

    def _leave_out_all_but(self, only: Sequence[int]) -> None:
        if len(only) < self.num_envs:
            silent = np.ones(self.num_envs, np.bool_)
            silent[only] = False
            self.buffers.info_schemas[silent] = 0

    def episode_of(self, env: int) -> int:
        """Which episode an env is in; -1 before the first."""
        return int(self.buffers.rows["episode_index"][env])

    def check_loose(self, loose: Mapping[int, list[Any]] | None) -> None:
        """Raise `Unpicklable` if one of these parts of actions could not be sent to a worker."""
        if loose is not None and self.pool.backend == "process":
            dump_request(loose)

    def check_can_travel(self, requests: Sequence[ResetRequest]) -> None:
        """Raise `Unpicklable` if one of these could not be sent to a worker."""
        if self.pool.backend == "process" and any(
            request.options is not None or request.task is not UNSAID for request in requests
        ):
            dump_request(requests)

    def task_infos(self, envs: npt.NDArray[np.intp] | None, of: Sequence[int] | None = None) -> Info:
        """Which task and which episode each row belongs to. `of`: rows of other envs say nothing."""
        tasks, episodes, mask = self._task_ids, self._episodes, self._everyone.copy()
        if envs is not None:
            tasks, episodes, mask = tasks[envs], episodes[envs], mask[: len(envs)]
        if of is None and self._has_everyone_a_task():
            return {
                "task_id": tasks.copy(),
                "_task_id": mask,
                "episode_index": episodes.copy(),
                "_episode_index": mask.copy(),
            }
        if of is not None:
            mask[:] = False
            mask[of] = True
        has_task = mask & (tasks != NO_TASK)
        return {
            "task_id": np.where(has_task, tasks, 0),
            "_task_id": has_task,
            "episode_index": np.where(mask, episodes, 0),
            "_episode_index": mask,
        }

    def _has_everyone_a_task(self) -> bool:
        """Who has had a task has one ever after: so this is found out once."""
        self._everyone_has_one = self._everyone_has_one or not (self._task_ids == NO_TASK).any()
        return self._everyone_has_one

    def task_info(self, env: int) -> Info:
        """The same for one env, as a part of its own info."""
        row = self.buffers.rows[env]
        episode: Info = {"episode_index": int(row["episode_index"])}
        return episode if row["task_id"] == NO_TASK else {"task_id": int(row["task_id"]), **episode}

    def rows(self, envs: npt.NDArray[np.intp], which_set: int) -> Rows:
        """What these envs returned from a step, row by row, but for the infos."""
        columns = self._sets[which_set]
        observations = self._assemble(
            [
                tuple(snapshot(column[env]) for env in envs) if isinstance(column, list) else column[envs]
                for column in columns
            ]
        )
        buffers = self.buffers
        return observations, buffers.rewards[envs], buffers.terminated[envs], buffers.truncated[envs]

    def infos_of(self, envs: npt.NDArray[np.intp], pickled: Mapping[int, Info]) -> Info:
        """The infos of these envs as one batch."""
        return self._info_reader.batch(envs, pickled)

    def own_infos(self, envs: npt.NDArray[np.intp], pickled: Mapping[int, Info]) -> list[Info]:
        """The infos of these envs, each as its env gave it."""
        return self._info_reader.each(envs.tolist(), pickled)

    def single(self, env: int, which_set: int, pickled: Mapping[int, Info]) -> tuple[Any, float, bool, bool, Info]:
        """What one env returned from a step, as the env itself would return it."""
        observation = self._assemble([snapshot(column[env]) for column in self._sets[which_set]])
        row = self.buffers.rows[env]
        info = self._info_reader.single(env, pickled)
        return observation, float(row["reward"]), bool(row["terminated"]), bool(row["truncated"]), info

    def observations(self, which_set: int, *, copied: bool) -> Any:
        """The latest observation of every env."""
        columns = self._sets[which_set]
        if not copied:
            return self._assemble([tuple(column) if isinstance(column, list) else column for column in columns])
        return self._assemble(
            [tuple(map(snapshot, column)) if isinstance(column, list) else column.copy() for column in columns]
        )

    def move_rows(self, before: int, after: int, rows: npt.NDArray[np.bool_]) -> None:
        """Copy rows of observations from one set to another."""
        for source, target in zip(self._sets[before], self._sets[after], strict=True):
            if isinstance(source, list):
                for row in np.flatnonzero(rows):
                    target[row] = source[row]
            else:
                target[rows] = source[rows]

    # ---- the workers ----------------------------------------------------------------------------------------------

    def stats(self, restarts: Sequence[int]) -> list[dict[str, Any]]:
        return [self._stats_of(worker, restarts[worker]) for worker in self.pool.all_workers]

    def _stats_of(self, worker: int, restarts: int) -> dict[str, Any]:
        counters, meters, held = self.buffers.counters[worker], self.pool.meters(worker), self.crew.slices[worker]
        return {
            "worker": worker,
            "pid": self.pool.pid(worker),
            "env_ids": tuple(held),
            "steps": self._full_steps * len(held) + self._asked[worker] - int(counters[NOT_STEPPED]),
            "step_seconds": meters.bell_seconds - float(counters[AUTORESET_SECONDS] - counters[MESSAGE_STEP_SECONDS]),
            "reset_seconds": float(counters[RESET_SECONDS] + counters[AUTORESET_SECONDS]),
            "wait_seconds": meters.wait_seconds,
            "idle_seconds": meters.idle_seconds,
            "restarts": restarts,
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
