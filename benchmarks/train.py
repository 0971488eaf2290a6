"""`python -m benchmarks train`: learning while collecting, beside learning after collecting, in turns.

The environment, `BusyAgents`, travels into workers, so this module imports nothing heavy before it is needed.
"""

from __future__ import annotations

import copy
import dataclasses
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.console import Console

from benchmarks.plan import BenchPlan
from benchmarks.zoo import ManyAgents
from parallel_envs.bench.cli import Report
from parallel_envs.bench.measure import Quartiles, Series, Tell, interleave, spread
from parallel_envs.checks import hint
from parallel_envs.choices import LearnIn, LoopMode, UpdateModeName
from parallel_envs.terminal import FittingTable

if TYPE_CHECKING:
    from parallel_envs.learners import IndependentLearners


class BusyAgents(ManyAgents):
    """`ManyAgents` with steps that compute for a number of microseconds or, with `waits`, wait for that time."""

    def __init__(self, num_agents: int, microseconds: float, *, waits: bool = False) -> None:
        super().__init__(num_agents)
        self._seconds, self._waits = microseconds * 1e-6, waits

    def step(self, actions: Mapping[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        end = time.thread_time() + self._seconds
        told = super().step(actions)
        if self._waits:
            time.sleep(self._seconds)
            return told
        while time.thread_time() < end:
            pass
        return told


_LOOK_SECONDS = 0.1


class PollingScheme:
    """Reference scheme that collects in the caller and learns in a thread that polls.

    `close` ends the thread. The original scheme never ended it.
    """

    def __init__(self, learners: IndependentLearners) -> None:
        self.learners = learners
        self.num_rollouts = self.num_learnt = self._seen = 0
        self._plans: dict[Any, Any] = {}
        self._weights: dict[Any, Any] = {}
        self._training = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()

    def collect(self) -> int:
        """Collect a rollout of all agents. Return the number of environment steps."""
        before = self.learners.steps
        self.learners.policy.load_state_dict(self._weights)
        while not all(one.ready for one in self.learners.agents.values()):
            self.learners.step()
        self._plans = {agent: copy.deepcopy(one.plan()) for agent, one in self.learners.agents.items()}
        self.num_rollouts += 1
        return self.learners.steps - before

    def finish(self) -> None:
        """Wait until the last rollout has been learnt."""
        while self._seen < self.num_rollouts and self._thread.is_alive():
            time.sleep(_LOOK_SECONDS / 10)
        with self._training:
            pass

    def _poll(self) -> None:
        while not self._closed:
            if self.num_rollouts > self._seen:
                with self._training:
                    self._seen = self.num_rollouts
                    self._learn()
            time.sleep(_LOOK_SECONDS)

    def _learn(self) -> None:
        from parallel_envs.learners.algorithm import update_one

        for agent, plan in self._plans.items():
            learner = self.learners.agents[agent]
            learner.finish(update_one(learner.parameters, plan))
        self._weights = {agent: learner.acting_weights() for agent, learner in self.learners.agents.items()}
        self.num_learnt += 1

    def close(self) -> None:
        self._closed = True
        self._thread.join()


SYNC, OVERLAP, FREE, POLLING = "sync", "overlap", "free", "polling thread, one lock"
WAYS = (SYNC, OVERLAP, FREE, POLLING)
IS_AT_LEAST = 0.8
"""Part of the largest possible time saving that `overlap` must achieve."""

_TRIES = 3  # the shortest of these turns counts: other load on the machine can only add to the time


@dataclass(frozen=True, kw_only=True)
class TrainPlan(BenchPlan):
    """Arguments of `python -m benchmarks train`.

    `microseconds` is the work in a step of an environment; with None, the work is chosen so that collecting and
    learning take equally long. With `waits`, a step waits for that time instead, as for another machine.
    """

    num_agents: int = 4
    num_envs: int = 8
    hidden: int = 64
    rollout_length: int = 64
    minibatch_size: int = 128
    num_epochs: int = 4
    update_mode: UpdateModeName = "sequential"
    learn_in: LearnIn = "process"
    microseconds: float | None = None
    waits: bool = False
    ways: tuple[str, ...] = WAYS
    rollouts: int = 24
    rounds: int = 5


@dataclass(frozen=True, slots=True)
class Turn:
    """Time of a number of rollouts: the total and, for `sync` only, each of the two parts."""

    seconds: float
    steps: int
    learnt: float
    """Updates of each agent, divided by its rollouts."""
    collect_seconds: float = 0.0
    learn_seconds: float = 0.0

    @property
    def bound(self) -> float:
        both = self.collect_seconds + self.learn_seconds
        return min(self.collect_seconds, self.learn_seconds) / both if both else 0.0


@dataclass(frozen=True, kw_only=True)
class TrainRow:
    """Figures of one way to train.

    `steps` is the spread of steps per second. `saved` is the share of the time of `sync` that this way saved, and
    `of_bound` that share divided by the largest possible one, both round by round. `learnt` is the number of updates
    per rollout.
    """

    name: str
    steps: Quartiles | None = None
    saved: Quartiles | None = None
    of_bound: Quartiles | None = None
    bound: float | None = None
    learnt: float = 0.0
    error: str | None = None


def measure_train(plan: TrainPlan, tell: Tell = lambda text: None) -> tuple[TrainRow, ...]:
    """Measure each way and return a row for each."""
    from parallel_envs.threads import one_torch_thread

    with ExitStack() as closing:
        closing.enter_context(one_torch_thread())
        if plan.microseconds is None:
            tell("making both sides equal")
            plan = dataclasses.replace(plan, microseconds=_equal_work(plan))
        samplers = {name: _opened(name, plan, closing, tell) for name in plan.ways}
        return rows_of(interleave(samplers, plan.rounds, tell))


def _equal_work(plan: TrainPlan) -> float:
    """Return the microseconds of work per step that make collecting and learning equally long."""
    with ExitStack() as closing:
        idle = dataclasses.replace(plan, microseconds=0.0, rollouts=min(plan.rollouts, 4))
        turn = _opened(SYNC, idle, closing, lambda text: None)
        turns = [turn() for _ in range(_TRIES)]
    collect, learn = (min(getattr(one, part) for one in turns) for part in ("collect_seconds", "learn_seconds"))
    return float(max(learn - collect, 0.0) / turns[0].steps * 1e6)


def _opened(name: str, plan: TrainPlan, closing: ExitStack, tell: Tell) -> Callable[[], Turn]:
    """Return a function that makes a turn of this way, after one turn to warm up."""
    tell(f"opening {name}")
    learners = _learners(plan, closing)
    turn = (
        partial(_polled, _scheme(learners, closing), plan) if name == POLLING else _loop(name, learners, plan, closing)
    )
    turn()
    return turn


def _learners(plan: TrainPlan, closing: ExitStack) -> IndependentLearners:
    """Return learners with their own environments, all of which share one worker."""
    from parallel_envs.learners import IndependentLearners, PPOConfig
    from parallel_envs.multiagent import MultiAgentEnvManager

    make = partial(BusyAgents, plan.num_agents, plan.microseconds or 0.0, waits=plan.waits)
    envs = closing.enter_context(MultiAgentEnvManager([make] * plan.num_envs, num_workers=1))
    config = PPOConfig(
        rollout_length=plan.rollout_length,
        minibatch_size=plan.minibatch_size,
        num_epochs=plan.num_epochs,
        hidden=(plan.hidden,) * 2,
    )
    return closing.enter_context(IndependentLearners(envs, config, update_mode=plan.update_mode))


def _scheme(learners: IndependentLearners, closing: ExitStack) -> PollingScheme:
    scheme = PollingScheme(learners)
    closing.callback(scheme.close)
    return scheme


def _polled(scheme: PollingScheme, plan: TrainPlan) -> Turn:
    before = scheme.num_learnt
    began = time.perf_counter()
    steps = sum(scheme.collect() for _ in range(plan.rollouts))
    scheme.finish()
    return Turn(time.perf_counter() - began, steps, (scheme.num_learnt - before) / plan.rollouts)


def _loop(name: str, learners: IndependentLearners, plan: TrainPlan, closing: ExitStack) -> Callable[[], Turn]:
    from parallel_envs.learners.loops import LoopOptions, open_loop

    queue = 2 * plan.num_agents if name == FREE else None
    options = LoopOptions(mode=cast(LoopMode, name), learn_in=plan.learn_in, queue=queue)
    return partial(_turn, closing.enter_context(open_loop(learners, options)), plan)


def _turn(loop: Any, plan: TrainPlan) -> Turn:
    learner = next(iter(loop.learners.agents.values()))
    before, versions, steps = loop.report(), learner.version, loop.learners.steps
    began = time.perf_counter()
    for _ in range(plan.rollouts * plan.rollout_length):
        loop.advance()
    loop.settle()
    seconds, after = time.perf_counter() - began, loop.report()
    parts = (getattr(after, part) - getattr(before, part) for part in ("collect_seconds", "learn_seconds"))
    return Turn(seconds, loop.learners.steps - steps, (learner.version - versions) / plan.rollouts, *parts)


def rows_of(series: Mapping[str, Series[Turn]]) -> tuple[TrainRow, ...]:
    """Return the rows. Each round is compared with the `sync` turn of that round."""
    first = series[SYNC].samples
    return tuple(_row(name, one, first) for name, one in series.items())


def _row(name: str, series: Series[Turn], first: Sequence[Turn]) -> TrainRow:
    turns = series.samples
    if not turns or not first:
        return TrainRow(name=name, error=series.error)
    pairs = list(zip(turns, first, strict=False))
    saved = [1 - (one.seconds / one.steps) / (sync.seconds / sync.steps) for one, sync in pairs]
    return TrainRow(
        name=name,
        steps=spread([one.steps / one.seconds for one in turns]),
        saved=spread(saved),
        of_bound=spread(
            [part / sync.bound if sync.bound else 0.0 for part, (_, sync) in zip(saved, pairs, strict=True)]
        ),
        bound=spread([sync.bound for sync in first]).median,
        learnt=spread([one.learnt for one in turns]).median,
        error=series.error,
    )


# ---- report ---------------------------------------------------------------------------------------------------------


def train_report(rows: Sequence[TrainRow], settings: Mapping[str, object], title: str) -> Report:
    """Return the rows as a table with the bar below it."""
    table = FittingTable(title=title, title_justify="left")
    for heading in ("way to train", "steps/s", "time saved", "at best", "part of it", "quarters", "updates a rollout"):
        table.add_column(heading, justify="left" if heading == "way to train" else "right")
    for row in rows:
        table.add_row(row.name, *_cells(row))
    notes = [
        f"{'PASS' if good else 'FAIL'}  {row.name} saves {reached:.2f} of what can be saved, bar {IS_AT_LEAST:g}"
        for row, reached, good in judged(rows)
    ]
    return Report("train", settings, [dataclasses.asdict(row) for row in rows], table, notes)


def judged(rows: Sequence[TrainRow]) -> list[tuple[TrainRow, float, bool]]:
    """Return the row that has a bar, with its ratio and whether the ratio reaches the bar."""
    found = [(row, row.of_bound.median) for row in rows if row.name == OVERLAP and row.of_bound is not None]
    return [(row, reached, reached >= IS_AT_LEAST) for row, reached in found]


def _cells(row: TrainRow) -> list[str]:
    if row.steps is None or row.saved is None or row.of_bound is None:
        return [row.error or "", *[""] * 5]
    quarters = f"{row.of_bound.lower_quartile:.2f}-{row.of_bound.upper_quartile:.2f}"
    told = f"{row.saved.median:.0%}", f"{row.bound or 0.0:.0%}", f"{row.of_bound.median:.2f}", quarters
    return [f"{row.steps.median:,.0f}", *told, f"{row.learnt:.2f}"]


def train(
    agents: Annotated[int, typer.Option(min=1, help="Number of agents that learn.")] = 4,
    envs: Annotated[int, typer.Option(min=1, help="Environments, all in one worker.")] = 8,
    update_mode: Annotated[str, typer.Option(help="Update mode of the learners.")] = "sequential",
    microseconds: Annotated[
        float | None,
        typer.Option(min=0, help="Work in a step, in microseconds; default: collecting takes as long as learning."),
    ] = None,
    waits: Annotated[bool, typer.Option("--waits", help="Steps wait for that time instead of computing.")] = False,
    rollouts: Annotated[int, typer.Option(min=1, help="Rollouts in a turn.")] = 24,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each way to train.")] = 5,
    json: Annotated[Path | None, typer.Option("--json", help="Write the results to this file, too.")] = None,
) -> None:
    """Measure learning while collecting beside learning after collecting and beside a thread that polls."""
    from parallel_envs.learners.updates import MODES

    if update_mode not in MODES:
        close = hint(update_mode, MODES)
        raise typer.BadParameter(
            f"There is no update mode called {update_mode!r}. Choose from {', '.join(MODES)}.{close}"
        )
    plan = TrainPlan(
        num_agents=agents,
        num_envs=envs,
        update_mode=cast(UpdateModeName, update_mode),
        microseconds=microseconds,
        waits=waits,
        rollouts=rollouts,
        rounds=rounds,
    )
    rows = measure_train(plan)
    report = train_report(rows, plan.settings, f"{agents} agents, {envs} envs; {rounds} turns of {rollouts} rollouts")
    Console().print(report.table, *report.notes, sep="\n")
    if json is not None:
        report.write(json)
    if not all(good for *_, good in judged(rows)):
        raise typer.Exit(1)
