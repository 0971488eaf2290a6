"""`collect`: play whole episodes on many environments with one batched policy.

    rollouts = collect(envs, policy, 16, tasks=tasks, seed=7)      # `envs`: a ParallelEnvManager, or one environment

All rollouts are planned before the first one begins (`plan_rollouts`): each has an id, task, seed and random generator.
Environments take the next planned rollout as they become free, and the policy acts for all that wait in one call
(`_PolicyRunner`). So the rollouts are the same however many workers play them, and in whatever order they end. This
needs environments that, after `reset(seed=...)`, do not depend on their earlier episodes.
"""

from __future__ import annotations

import contextlib
import copy
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import cloudpickle
import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.error import AlreadyPendingCallError
from gymnasium.vector import AutoresetMode

from parallel_envs import trace
from parallel_envs.checks import check_count, check_whole, suggests_keywords, yes_or_no
from parallel_envs.engine.interrupts import Interrupts
from parallel_envs.errors import CollectionInterrupted
from parallel_envs.policies import BatchPolicy, FunctionPolicy, RandomPolicy, Rows, as_batch_policy
from parallel_envs.policies.base import NETWORK_HINT, is_network
from parallel_envs.progress import ProgressDisplay, shown
from parallel_envs.rollouts.rollout import (
    Columns,
    Rollout,
    Rollouts,
    check_fits,
    check_rows,
    joined,
    put_rows,
    take_rows,
    tree_leaves,
)
from parallel_envs.seeding import SeedTree
from parallel_envs.tasks import KEEP, RESAMPLE, Task, TaskSource, task_key
from parallel_envs.threads import one_thread
from parallel_envs.vector import ParallelEnvManager
from parallel_envs.vector.arguments import check_number

_DRAIN_SECONDS = 5.0
_LOOK_UP_SECONDS = 0.2
_CALLS_WORTH_WAITING = 4


@suggests_keywords
def collect(
    envs: ParallelEnvManager | gymnasium.Env[Any, Any],
    policy: Any,
    num_rollouts: int,
    tasks: Sequence[Any] | TaskSource | None = None,
    random_actions: bool = False,
    *,
    seed: int = 0,
    first_id: int = 0,
    max_steps: int | None = None,
    exact: bool = False,
    info_keys: Sequence[str] = (),
    progress: bool = False,
) -> Rollouts:
    """Play `num_rollouts` whole episodes and return them in the order of their ids.

    Threads: any number may call it at once, each with a manager and a policy of its own. A second call with the same
    manager raises `ConcurrentCall`. Two calls that share one environment, or a policy with a state, are not detected.

    Args:
        envs: A `ParallelEnvManager`, or one environment, which then plays the rollouts one after another.
        policy: A `BatchPolicy`, an `AgentPolicy`, or a function from an observation to an action. May be None with
            `random_actions`.
        num_rollouts: The number of rollouts.
        tasks: One for each rollout, or a task source. None: the task source of `envs`, or no tasks.
        random_actions: Sample the action space instead of calling the policy.
        seed: Source of all seeds and random generators. Rollout `id` of a seed is always the same.
        first_id: The id of the first rollout. Continue after the last id to collect more of the same run.
        max_steps: Truncate rollouts after this number of steps. None: they end where their environment says.
        exact: Compute the actions of each row by itself. Networks round differently in batches of different sizes:
            without `exact`, results for different numbers of workers agree to about 1e-5; with it, to the bit.
        info_keys: Names of infos to keep in `Rollout.infos`.
        progress: Show a progress bar.

    Raises:
        CollectionInterrupted: Ctrl-C; a KeyboardInterrupt that carries the rollouts that were complete.
    """
    check_count("num_rollouts", num_rollouts)
    if max_steps is not None:
        check_count("max_steps", max_steps)
    check_whole("first_id", first_id)
    if first_id < 0:
        raise ValueError(f"first_id={first_id} is negative. Give a whole number from 0 up.")
    if isinstance(info_keys, str) or not hasattr(info_keys, "__iter__"):
        raise TypeError(f"info_keys={info_keys!r} is no list of names. Give one, such as [{info_keys!r}].")
    for name, value in {"random_actions": random_actions, "exact": exact, "progress": progress}.items():
        yes_or_no(name, value)
    with contextlib.ExitStack() as stack:
        if isinstance(envs, ParallelEnvManager):
            manager = envs
        elif isinstance(envs, gymnasium.Env):
            manager = ParallelEnvManager([lambda: _NeverClosed(envs)], backend="serial")
            stack.enter_context(contextlib.closing(manager))
        else:
            raise TypeError(f"envs={envs!r} is neither a ParallelEnvManager nor a gymnasium.Env.")
        acting = RandomPolicy(manager.single_action_space) if random_actions else as_batch_policy(policy)
        plans = plan_rollouts(num_rollouts, manager.task_source if tasks is None else tasks, seed, first_id)
        bar = stack.enter_context(shown("rollouts", num_rollouts)) if progress else None
        return _Collection(manager, acting, plans, max_steps, exact, tuple(info_keys), bar).collect()


class _NeverClosed(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment that belongs to the caller: closing the manager does not close it."""

    def close(self) -> None:
        pass


# ---- the loop -------------------------------------------------------------------------------------------------------


class _Collection:
    """State and loop of one call of `collect`."""

    def __init__(
        self,
        envs: ParallelEnvManager,
        policy: BatchPolicy,
        plans: Sequence[PlannedRollout],
        max_steps: int | None,
        exact: bool,
        info_keys: tuple[str, ...],
        bar: ProgressDisplay | None,
    ) -> None:
        self._envs, self._guard = envs, envs._guard
        self._max_steps, self._info_keys, self._bar = max_steps, info_keys, bar
        self._waiting = deque(plans)
        self._episodes: dict[int, _EpisodeBuffer] = {}
        """By env the rollout that it is playing."""
        self._done: list[Rollout] = []
        self._num_steps = 0
        self._num_in_flight = 0
        """Envs with an unanswered request."""
        self._patience = 0.0
        """Seconds to wait for more envs, once one has answered."""
        self._interrupts = Interrupts()
        self._columns = Columns(envs.single_observation_space)
        self._action_columns = Columns(envs.single_action_space)
        self._runner = _PolicyRunner(
            policy, envs.num_envs, self._columns, self._action_columns, self._interrupts, exact
        )
        places, taken = [], Counter[int]()
        for env, worker in enumerate(envs.workers_of):
            places.append((taken[worker], worker, env))
            taken[worker] += 1
        self._free = [env for _, _, env in sorted(places, reverse=True)]
        """Idle envs. From the end, one env of each worker in turn: a few rollouts are spread over all workers."""

    @one_thread
    def collect(self) -> Rollouts:
        """Play all rollouts. No other thread may use the environments meanwhile."""
        if in_flight := [env for env in range(self._envs.num_envs) if self._envs.is_away(env)]:
            raise AlreadyPendingCallError(
                f"`collect` was called while envs {in_flight} are still on the way, from a `send` or from a `collect` "
                "that failed. Call `recv` first; for envs that hang, call `restart(env_ids)` before it.",
                "send",
            )
        try:
            with self._interrupts:
                self._begin_episodes()
                while self._episodes:
                    envs, batch = self._receive()
                    if envs:
                        began = time.perf_counter()
                        actions = self._runner.act({env: self._episodes[env] for env in envs}, batch)
                        self._patience = _CALLS_WORTH_WAITING * (time.perf_counter() - began)
                        trace.record("act", began, envs=len(envs))
                        self._envs.send(actions, envs)
                        self._num_in_flight += len(envs)
                    self._begin_episodes()
        except KeyboardInterrupt:
            raise self._interrupted() from None
        except BaseException as error:
            if self._interrupts.struck:  # before the error
                raise self._interrupted() from error
            for env in getattr(error, "env_ids", ()):
                if env in self._episodes:
                    plan = self._episodes[env].plan
                    error.add_note(f"Env {env} was playing rollout {plan.id} (task {plan.task!r}, seed {plan.seed}).")
            error.add_note(f"{len(self._done)} rollouts were complete; they are in this error's `rollouts`.")
            error.rollouts = Rollouts(self._done)  # type: ignore[attr-defined]  # any exception, raised as it is
            self._drain()
            raise
        return Rollouts(self._done)

    def _begin_episodes(self) -> None:
        """Send resets for the next planned rollouts to the envs that are free."""
        begun: dict[int, PlannedRollout] = {}
        while self._free and self._waiting:
            env, plan = self._free.pop(), self._waiting.popleft()
            self._episodes[env] = _EpisodeBuffer(plan, plan.generator(), {key: [] for key in self._info_keys})
            begun[env] = plan
        if begun:
            tasks = [plan.task for plan in begun.values()]
            seeds = [plan.seed for plan in begun.values()]
            self._envs.send_reset(list(begun), seed=seeds, tasks=None if tasks[0] is None else tasks)
            self._num_in_flight += len(begun)

    def _receive(self) -> tuple[list[int], Any]:
        """Receive and record answers. Return the envs that need an action, and the batch of their observations.
        Waits for one env, and then for half of the envs in flight if those answer soon. Waiting for more envs saves
        calls of the policy, so it may take as long as some calls, but a fast env must not stand idle for slow ones.
        Between waits Ctrl-C is checked.
        """
        self._interrupts.check()
        while self._envs.ready(1, _LOOK_UP_SECONDS) < 1 and not self._envs.late:
            self._interrupts.check()
        self._envs.ready(max(1, self._num_in_flight // 2), self._patience)
        envs, observations, rewards, terminated, truncated, infos = self._envs.recv_each(1)
        self._num_in_flight -= len(envs)
        acting, rows = [], []
        for row, env in enumerate(envs.tolist()):
            episode, info, over, cut = self._episodes[env], infos[row], bool(terminated[row]), bool(truncated[row])
            is_first = not episode.observations
            is_lost = not is_first and "worker_restarted" in info
            if is_first:
                over = cut = False
                episode.observations.append(self._columns.row(observations, row))
            elif is_lost:  # with its worker: play it again
                self._waiting.appendleft(episode.plan)
            else:
                if (over or cut) and self._envs.autoreset_mode is AutoresetMode.SAME_STEP:  # the row begins the next
                    episode.observations.append(self._columns.fitted(info["final_obs"]))
                    info = info.get("final_info", {})
                else:
                    episode.observations.append(self._columns.row(observations, row))
                cut = cut or (not over and len(episode.rewards) + 1 == self._max_steps)
                reward = self._runner.previous_rewards[env] = float(rewards[row])
                episode.rewards.append(reward)
                episode.terminated.append(over)
                episode.truncated.append(cut)
                for key, kept in episode.infos.items():
                    kept.append(info.get(key))
                self._num_steps += 1
                if over or cut:
                    self._done.append(episode.rollout(self._columns, self._action_columns))
            if is_lost or over or cut:
                del self._episodes[env]
                self._free.append(env)
            else:
                acting.append(env)
                rows.append(row)
        if self._bar is not None:
            speed, busy = self._num_steps / max(self._bar.seconds, 1e-9), len(self._episodes)
            is_last = not self._waiting and not busy
            self._bar.show(len(self._done), more=f"{speed:,.0f} steps/s, {busy} busy", last=is_last)
        return acting, observations if len(rows) == len(envs) else self._columns.take(observations, rows)

    def _interrupted(self) -> CollectionInterrupted:
        with contextlib.suppress(KeyboardInterrupt):  # a second Ctrl-C leaves requests in flight
            self._drain()
        return CollectionInterrupted(Rollouts(self._done))

    def _drain(self) -> None:
        """After an error: receive the pending answers, which are not for the next user of the environments. Answers
        that do not arrive in time stay pending, for `recv` to return.
        """
        until = time.monotonic() + _DRAIN_SECONDS
        while not self._envs.closed and time.monotonic() < until:
            in_flight = sum(self._envs.is_away(env) for env in range(self._envs.num_envs))
            if not in_flight:
                return
            with contextlib.suppress(Exception):  # each failure is raised alone: the others are still to be received
                self._envs.recv(in_flight, timeout=max(until - time.monotonic(), 0.0))


@dataclass(slots=True, eq=False)
class _EpisodeBuffer:
    """A rollout while it is being played."""

    plan: PlannedRollout
    generator: np.random.Generator
    infos: dict[str, list[Any]]
    observations: list[Any] = field(default_factory=list)
    actions: list[Any] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    terminated: list[bool] = field(default_factory=list)
    truncated: list[bool] = field(default_factory=list)
    records: list[Mapping[str, Any]] = field(default_factory=list)

    def rollout(self, columns: Columns, action_columns: Columns) -> Rollout:
        """Return the complete rollout, after its last step."""
        plan, records = self.plan, self.records
        names = records[0] if records else ()
        return Rollout(
            plan.id,
            None if plan.task is None else plan.task.value,
            -1 if plan.task is None else plan.task.id,
            plan.seed,
            plan.episode_index,
            columns.stack(self.observations),
            action_columns.stack(self.actions),
            np.array(self.rewards, np.float64),
            np.array(self.terminated, np.bool_),
            np.array(self.truncated, np.bool_),
            {name: np.stack([record[name] for record in records]) for name in names},
            self.infos,
            columns,
            action_columns,
        )


# ---- the plan -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PlannedRollout:
    """A rollout to be played. `task` is None for the task that the environment has."""

    id: int
    task: Task | None
    seed: int
    episode_index: int
    stream: SeedTree

    def generator(self) -> np.random.Generator:
        """Return the random generator for the policy in this rollout."""
        return self.stream.generator()


def plan_rollouts(num_rollouts: int, tasks: Any, seed: int, first_id: int) -> list[PlannedRollout]:
    """Return the rollouts `first_id`, `first_id + 1`, ... of the run with this seed. A list of tasks has one for each
    rollout: a task without a number has the place of the first task that equals it. A task source gives rollout `id`
    the first task of environment `id`.
    """
    tree, first_id = SeedTree(seed).child("rollout"), int(first_id)  # NumPy's integers are bounded
    chosen: list[Task | None] = []
    if isinstance(tasks, np.ndarray) and tasks.ndim:
        tasks = list(tasks)
    if tasks is None:
        chosen = [None] * num_rollouts
    elif isinstance(tasks, TaskSource):
        try:
            source = copy.deepcopy(tasks)  # binding the source itself would change a manager's tasks
        except Exception as error:
            raise TypeError(f"The task source {tasks!r} cannot be copied, so neither can its tasks: {error}") from error
        source.bind(1)
        chosen = [source.task_for(first_id + place, 0) for place in range(num_rollouts)]
    elif isinstance(tasks, str | bytes) or not isinstance(tasks, Sequence):
        raise TypeError(f"tasks={tasks!r} is neither a list of tasks nor a task source.")
    elif len(tasks) != num_rollouts:
        raise ValueError(
            f"{len(tasks)} tasks were given for num_rollouts={num_rollouts}. Give one for each rollout, or a task "
            "source such as CycleTasks(tasks)."
        )
    elif any(task is KEEP or task is RESAMPLE for task in tasks):
        raise ValueError("KEEP and RESAMPLE are no tasks for a rollout: any environment may play it. Give a value.")
    else:
        taken = {task.id for task in tasks if isinstance(task, Task)}
        numbers: dict[bytes, int] = {}
        for place, task in enumerate(tasks):
            number = None if isinstance(task, Task) else numbers.setdefault(task_key(task), place)
            if number in taken:
                raise ValueError(
                    f"The task {task!r} would have the number {number}, which a Task of the same list has. Give "
                    "all of them numbers, as Task(value, id)."
                )
            chosen.append(task if number is None else Task(task, number))
    for one in {id(one): one for one in chosen if one is not None}.values():  # checked now, not after many rollouts
        check_number(one)
        try:
            cloudpickle.dumps(one.value)
        except Exception as error:
            raise TypeError(
                f"The task {one.value!r} cannot be pickled, so it cannot be sent to a worker: {error}"
            ) from error
    played: Counter[int | None] = Counter()
    plans = []
    for rollout_id, planned in enumerate(chosen, first_id):
        number_of_task = None if planned is None else planned.id
        node = tree.child(rollout_id)
        plans.append(PlannedRollout(rollout_id, planned, node.seed(), played[number_of_task], node.child("policy")))
        played[number_of_task] += 1
    return plans


# ---- the policy -----------------------------------------------------------------------------------------------------


class _PolicyRunner:
    """Calls a policy for rows, one for each env, and keeps its state, previous actions and previous rewards by row. All
    that the policy returns is checked and copied. With `exact` each row is computed by itself, so that no result
    depends on the other rows of a batch.
    """

    def __init__(
        self,
        policy: BatchPolicy,
        num_rows: int,
        columns: Columns,
        action_columns: Columns,
        interrupts: Interrupts,
        exact: bool,
    ) -> None:
        self._policy, self._exact, self._interrupts = policy, exact, interrupts
        self._columns, self._action_columns = columns, action_columns
        self._state = self._initial_state(num_rows)
        self._has_state = bool(tree_leaves(self._state))
        self._recorded: dict[str, npt.NDArray[Any]] | None = None
        self.previous_rewards = np.zeros(num_rows)
        shape, dtype = (num_rows, *action_columns.shape), action_columns.dtype
        self._previous_actions = np.zeros(shape, dtype) if action_columns.is_array else None

    def act(self, episodes: Mapping[int, _EpisodeBuffer], batch: Any) -> Any:
        """Return actions for the rows `episodes`, with the observations `batch`, and record them in the episodes."""
        rows = np.array(list(episodes))
        if self._exact:
            parts = [
                self._decide(rows[[place]], [episode], self._columns.take(batch, [place]))
                for place, episode in enumerate(episodes.values())
            ]
            actions = self._action_columns.combine([part[0] for part in parts], joined)
            records = {name: np.concatenate([part[1][name] for part in parts]) for name in parts[0][1]}
        else:
            actions, records = self._decide(rows, list(episodes.values()), batch)
        for place, episode in enumerate(episodes.values()):
            episode.actions.append(self._action_columns.row(actions, place))
            if records:
                episode.records.append({name: column[place] for name, column in records.items()})
        return actions

    def _decide(
        self, rows: npt.NDArray[np.intp], episodes: Sequence[_EpisodeBuffer], batch: Any
    ) -> tuple[Any, dict[str, npt.NDArray[Any]]]:
        """Call the policy once. Return actions, in the types of the space, and records."""
        resets = np.array([not episode.rewards for episode in episodes])
        if resets.any():  # forget the episodes that were played in these rows before
            fresh = rows[resets]
            self.previous_rewards[fresh] = 0.0
            if self._previous_actions is not None:
                self._previous_actions[fresh] = 0
            if self._has_state:
                self._put_state(fresh, self._initial_state(len(fresh)))
        context = Rows(
            [episode.generator for episode in episodes],
            lambda: [self._columns.row(batch, row) for row in range(len(episodes))],
            None if self._previous_actions is None else self._previous_actions[rows],
            self.previous_rewards[rows],
        )
        state = take_rows(self._state, rows) if self._has_state else self._state
        with self._interrupts.let_through():
            answer: Any = self._policy.act(batch, state, resets, context)
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise TypeError(f"{self._policy!r} returned {answer!r} from act. Return the pair (actions, state).")
        given, state = answer
        try:
            stacked = self._action_columns.stack(given) if isinstance(given, list) and given else given
            actions = self._action_columns.checked(stacked, len(rows))
        except (ValueError, TypeError, KeyError, IndexError, RuntimeError) as error:
            is_bare = isinstance(self._policy, FunctionPolicy) and is_network(self._policy.function)
            help_ = NETWORK_HINT if is_bare else "Return a batch with a row for each, or a list of one action for each."
            raise ValueError(
                f"{self._policy!r} returned actions for {len(rows)} rows that do not fit the action space: {error}. "
                f"{help_}"
            ) from error
        self._put_state(rows, state)
        if self._previous_actions is not None:
            self._previous_actions[rows] = actions
        records = {name: np.array(column) for name, column in context.records.items()}  # the policy may use its again
        if self._recorded is not None and records.keys() != self._recorded.keys():
            raise ValueError(
                f"{self._policy!r} recorded {sorted(records)}, and {sorted(self._recorded)} in the call before. Record "
                "the same at each."
            )
        for name, column in records.items():
            if column.shape[:1] != (len(rows),):
                raise ValueError(
                    f"{self._policy!r} recorded {name!r} with the shape {column.shape} for {len(rows)} rows. "
                    "Record a row for each."
                )
        self._recorded = records
        return actions, records

    def _initial_state(self, num_rows: int) -> Any:
        """Return the state of rows that begin: a copy, since the policy may return the same arrays each time."""
        state = self._policy.initial_state(num_rows)
        try:
            check_rows(state, num_rows)
        except ValueError as error:
            raise ValueError(
                f"{self._policy!r} gave an initial_state({num_rows}) that is no tree of arrays with {num_rows} rows: "
                f"{error}."
            ) from error
        return take_rows(state, np.arange(num_rows))

    def _put_state(self, rows: npt.NDArray[np.intp], state: Any) -> None:
        """Replace the state of these rows. Without an initial state, an empty state in any form will do."""
        if not self._has_state and (state is None or not tree_leaves(state)):
            return
        try:
            check_fits(self._state, state, len(rows))
        except ValueError as error:
            raise ValueError(
                f"{self._policy!r} returned a state for {len(rows)} rows that is not of the form of its initial_state: "
                f"{error}."
            ) from error
        self._state = put_rows(self._state, rows, state)
