"""Collecting rollouts: many environments, one batched policy, exactly so many whole episodes.

    rollouts = collect(envs, policy, 16, tasks=tasks, seed=7)      # `envs`: a ParallelEnvManager, or one environment

What is played is decided beforehand (`orders`): each rollout has its id, task, seed and random generator. Environments
take the next order as they become free, and a policy acts for all that wait in one call. So the rollouts are the same
however many workers play them, and in whatever order they end. One condition is the environments' own: after
`reset(seed=...)` an episode may depend on nothing that happened in earlier ones.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import gymnasium
import numpy.typing as npt
from gymnasium.error import AlreadyPendingCallError
from gymnasium.vector import AutoresetMode

from parallel_envs.errors import CollectionInterrupted
from parallel_envs.policies import BatchPolicy, RandomPolicy, as_batch_policy
from parallel_envs.rollouts.acting import Acting
from parallel_envs.rollouts.columns import Columns
from parallel_envs.rollouts.interrupts import Interrupts
from parallel_envs.rollouts.orders import Order, check_first_id, orders
from parallel_envs.rollouts.progress import Bar, bar
from parallel_envs.rollouts.rollout import Rollout, Rollouts
from parallel_envs.rollouts.takes import Take
from parallel_envs.spelling import suggests_keywords
from parallel_envs.tasks import TaskSource
from parallel_envs.threads import one_thread
from parallel_envs.vector import ParallelEnvManager
from parallel_envs.vector.checks import check_count, yes_or_no

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
    manager raises `ConcurrentCall`. If two calls share one environment, or a policy with a state, nobody notices.

    Args:
        envs: A `ParallelEnvManager`, or one environment, which then plays them one after another.
        policy: A `BatchPolicy`, an `AgentPolicy`, or a function from an observation to an action. None is enough with
            `random_actions`.
        num_rollouts: How many.
        tasks: One for each rollout, or a task source. None: the source that `envs` has, or no tasks.
        random_actions: Sample the action space in the place of the policy.
        seed: Where all seeds and draws come from. Rollout `id` of a seed is always the same.
        first_id: The id of the first rollout. Go on from the last to collect more of the same run.
        max_steps: Cut rollouts off (truncated) after so many steps. None: they end where their environment says.
        exact: Compute the actions of each row by itself. Networks round differently in batches of different sizes: so
            results agree to about 1e-5 for different numbers of workers, and with `exact` to the bit.
        info_keys: Infos to keep, by name, in `Rollout.infos`.
        progress: Show a progress bar.

    Raises:
        CollectionInterrupted: Ctrl-C; a KeyboardInterrupt that carries the rollouts that were complete.
    """
    check_count("num_rollouts", num_rollouts)
    if max_steps is not None:
        check_count("max_steps", max_steps)
    check_first_id(first_id)
    if isinstance(info_keys, str):
        raise TypeError(f"info_keys={info_keys!r} is a string. Give a list of names: [{info_keys!r}].")
    if not isinstance(info_keys, Iterable):
        raise TypeError(f"info_keys={info_keys!r} is no list of names. Give one, such as ['success'].")
    for name, value in {"random_actions": random_actions, "exact": exact, "progress": progress}.items():
        yes_or_no(name, value)
    with _vectorised(envs) as manager:
        acting = RandomPolicy(manager.single_action_space) if random_actions else as_batch_policy(policy)
        wanted = orders(num_rollouts, manager.task_source if tasks is None else tasks, seed, first_id)
        with bar(num_rollouts, progress) as shown:
            collection = _Collection(manager, acting, wanted, max_steps, exact, tuple(info_keys), shown)
            return collection.collect()


@contextlib.contextmanager
def _vectorised(envs: Any) -> Iterator[ParallelEnvManager]:
    if isinstance(envs, ParallelEnvManager):
        yield envs
    elif isinstance(envs, gymnasium.Env):
        with contextlib.closing(ParallelEnvManager([lambda: _Lent(envs)], backend="serial")) as manager:
            yield manager
    else:
        raise TypeError(f"envs={envs!r} is neither a ParallelEnvManager nor a gymnasium.Env.")


class _Lent(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment that goes back to its owner afterwards."""

    def close(self) -> None:
        pass


class _Collection:
    """One call of `collect`: which environment plays what, and what the policy remembers of it."""

    def __init__(
        self,
        envs: ParallelEnvManager,
        policy: BatchPolicy,
        wanted: Sequence[Order],
        max_steps: int | None,
        exact: bool,
        info_keys: tuple[str, ...],
        shown: Bar,
    ) -> None:
        self._envs, self._guard = envs, envs._guard
        self._max_steps, self._info_keys, self._shown = max_steps, info_keys, shown
        self._waiting = deque(wanted)
        self._takes: dict[int, Take] = {}
        self._away = 0
        self._patience = 0.0
        """For how many seconds a batch may grow, once one environment has answered."""
        self._done: list[Rollout] = []
        self._interrupts = Interrupts()
        self._num_steps = 0
        self._columns = Columns(envs.single_observation_space)
        self._action_columns = Columns(envs.single_action_space)
        self._free = _in_turns(envs.workers_of)[::-1]
        self._acting = Acting(policy, envs.num_envs, self._columns, self._action_columns, self._interrupts, exact=exact)

    @one_thread
    def collect(self) -> Rollouts:
        """Play all of them. No other thread may use the environments meanwhile."""
        self._check_idle()
        try:
            with self._interrupts:
                self._begin()
                while self._takes:
                    self._act(*self._land())
                    self._begin()
        except KeyboardInterrupt:
            raise self._interrupted() from None
        except BaseException as error:
            if self._interrupts.struck:  # before it failed
                raise self._interrupted() from error
            self._tell(error)
            self._drain()
            raise
        return Rollouts(self._done)

    def _interrupted(self) -> CollectionInterrupted:
        with contextlib.suppress(KeyboardInterrupt):  # who cannot wait leaves requests on the way
            self._drain()
        return CollectionInterrupted(Rollouts(self._done))

    def _tell(self, error: BaseException) -> None:
        """Add to an error what was being played, and what is complete already."""
        for env in getattr(error, "env_ids", ()):
            if env in self._takes:
                order = self._takes[env].order
                error.add_note(f"Env {env} was playing rollout {order.id} (task {order.task!r}, seed {order.seed}).")
        error.add_note(f"{len(self._done)} rollouts were complete; they are in this error's `rollouts`.")
        error.rollouts = Rollouts(self._done)  # type: ignore[attr-defined]  # whatever was raised goes on as it is

    # ---- environments -----------------------------------------------------------------------------------------------

    def _check_idle(self) -> None:
        """Whatever is still on the way is someone else's."""
        away = [env for env in range(self._envs.num_envs) if self._envs.is_away(env)]
        if away:
            raise AlreadyPendingCallError(
                f"`collect` was called while envs {away} are still on the way, from a `send` or from a `collect` that "
                "failed. Call `recv` first; those that hang want `restart(env_ids)` before it.",
                "send",
            )

    def _begin(self) -> None:
        """Give the next orders to the environments that are free."""
        begun = []
        while self._free and self._waiting:
            env, order = self._free.pop(), self._waiting.popleft()
            self._takes[env] = Take(order, self._info_keys)
            begun.append(env)
        if not begun:
            return
        seeds = [self._takes[env].order.seed for env in begun]
        tasks = [self._takes[env].order.task for env in begun]
        self._envs.send_reset(begun, seed=seeds, tasks=None if tasks[0] is None else tasks)
        self._away += len(begun)

    def _land(self) -> tuple[list[int], list[int], Any]:
        """Take in what has come back. Returns the environments that want an action, their rows, and the batch."""
        envs, observations, rewards, terminated, truncated, infos = self._receive(max(1, self._away // 2))
        self._away -= len(envs)
        wanting, rows = [], []
        for row, env in enumerate(envs.tolist()):
            take = self._takes[env]
            if not take.begun:
                take.chain.append(self._columns.row(observations, row))
            elif "worker_restarted" in infos[row]:
                self._give_back(env, take)
                continue
            elif self._note(take, env, row, observations, rewards, terminated, truncated, infos[row]):
                self._finish(env, take)
                continue
            wanting.append(env)
            rows.append(row)
        self._shown.show(len(self._done), self._num_steps, len(self._takes))
        return wanting, rows, observations

    def _receive(self, least: int) -> Any:
        """What `recv_each` gives for at least one environment, and for `least` of them if those come soon.

        To wait for more saves calls of the policy, so it may take as long as some of them: a quick environment is not
        to stand idle for the sake of slow ones. Between looks there is time for a Ctrl-C.
        """
        self._interrupts.check()
        while self._envs.ready(1, _LOOK_UP_SECONDS) < 1 and not self._envs.late:
            self._interrupts.check()
        self._envs.ready(least, self._patience)
        return self._envs.recv_each(1)

    def _note(
        self,
        take: Take,
        env: int,
        row: int,
        observations: Any,
        rewards: npt.NDArray[Any],
        terminated: npt.NDArray[Any],
        truncated: npt.NDArray[Any],
        info: Mapping[str, Any],
    ) -> bool:
        """Note a step. True: it was the last."""
        self._num_steps += 1
        over, cut = bool(terminated[row]), bool(truncated[row])
        ended = over or cut
        if not ended and len(take) + 1 == self._max_steps:
            cut = True
        own = info
        if ended and self._envs.autoreset_mode is AutoresetMode.SAME_STEP:  # the row is the next episode's already
            take.chain.append(self._columns.fitted(info["final_obs"]))
            own = info.get("final_info", {})
        else:
            take.chain.append(self._columns.row(observations, row))
        reward = float(rewards[row])
        take.rewards.append(reward)
        take.terminated.append(over)
        take.truncated.append(cut)
        self._acting.rewarded(env, reward)
        for key, kept in take.infos.items():
            kept.append(own.get(key))
        return over or cut

    def _finish(self, env: int, take: Take) -> None:
        self._done.append(take.rollout(self._columns, self._action_columns))
        del self._takes[env]
        self._free.append(env)

    def _give_back(self, env: int, take: Take) -> None:
        """The episode was lost with its worker: it is played again from its beginning."""
        self._waiting.appendleft(take.order)
        del self._takes[env]
        self._free.append(env)

    def _drain(self) -> None:
        """After an error: what is still on the way is not for whoever uses the environments next.

        What does not come in time stays on the way, for `recv` to bring.
        """
        until = time.monotonic() + _DRAIN_SECONDS
        while not self._envs.closed and time.monotonic() < until:
            away = sum(self._envs.is_away(env) for env in range(self._envs.num_envs))
            if not away:
                return
            with contextlib.suppress(Exception):  # each failure is told alone: the others are still to be received
                self._envs.recv(away, timeout=max(until - time.monotonic(), 0.0))

    def _act(self, envs: list[int], rows: list[int], observations: Any) -> None:
        """Have the policy act for these rows, and send the actions."""
        if not envs:
            return
        everyone = len(rows) == self._columns.count(observations)
        batch = observations if everyone else self._columns.take(observations, rows)
        began = time.perf_counter()
        actions = self._acting.act({env: self._takes[env] for env in envs}, batch)
        self._patience = _CALLS_WORTH_WAITING * (time.perf_counter() - began)
        self._envs.send(actions, envs)
        self._away += len(envs)


def _in_turns(workers: Sequence[int]) -> list[int]:
    """The environments, one of each worker after another: where there are fewer rollouts, no worker has them all."""
    turns: Counter[int] = Counter()
    places = []
    for env, worker in enumerate(workers):
        places.append((turns[worker], worker, env))
        turns[worker] += 1
    return [env for _, _, env in sorted(places)]
