"""`python -m benchmarks iteration`: whole iterations of independent PPO beside a plain training loop, in turns.

The reference, `PlainTraining`, is a short script: a loop that steps, acts and trains one agent after another. It uses
nothing of parallel_envs, so its cost is that of a script: PettingZoo environments stepped in turn, and a torch network
and optimiser for each agent. Each agent's network gets the observations of all environments at once, as in a good
script.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import numpy as np
import torch
import typer
from rich.console import Console
from torch import Tensor, nn

from benchmarks.plan import BenchPlan
from benchmarks.train import OVERLAP
from parallel_envs.bench.cli import Report
from parallel_envs.bench.measure import Slice, Spread, Tell, interleave, paired_ratio, run_for, spread
from parallel_envs.bench.turns import Pace, rates_of
from parallel_envs.choices import UpdateModeName
from parallel_envs.terminal import FittingTable

if TYPE_CHECKING:
    from parallel_envs.learners.loops.loop import Loop


@dataclass(frozen=True, kw_only=True)
class PlainSettings:
    """Settings of the plain loop, with the names that they have in `PPOConfig`."""

    rollout_length: int = 128
    minibatch_size: int = 256
    num_epochs: int = 4
    hidden: int = 64
    learning_rate: float = 3e-4
    discount: float = 0.99
    gae_lambda: float = 0.95
    clip_range: float = 0.2
    value_weight: float = 0.5
    entropy_weight: float = 0.01
    max_grad_norm: float = 0.5


class PlainAgent:
    """Agent of the plain loop: two networks, an optimiser, and the experience since its last update."""

    def __init__(self, num_seen: int, num_actions: int, settings: PlainSettings) -> None:
        self.settings = settings
        self.actor = _network(num_seen, settings.hidden, num_actions)
        self.critic = _network(num_seen, settings.hidden, 1)
        self.parameters = [*self.actor.parameters(), *self.critic.parameters()]
        self.optimiser = torch.optim.Adam(self.parameters, lr=settings.learning_rate, eps=1e-5)
        self.lived: list[tuple[Any, ...]] = []

    def act(self, observations: np.ndarray[Any, Any]) -> tuple[Tensor, Tensor, Tensor]:
        """Return actions for all environments, their log probabilities, and values."""
        with torch.no_grad():
            seen = torch.from_numpy(observations)
            log_probs = self.actor(seen).log_softmax(-1)
            actions = log_probs.exp().multinomial(1)
            return actions[:, 0], log_probs.gather(1, actions)[:, 0], self.critic(seen).squeeze(-1)

    def learn(self, last: np.ndarray[Any, Any]) -> None:
        """Update the networks from the experience. `last` holds the current observations of the agent."""
        settings = self.settings
        observations, actions, log_probs, values, rewards, ends = (
            torch.stack(list(column)) for column in zip(*self.lived, strict=True)
        )
        with torch.no_grad():
            ahead = self.critic(torch.from_numpy(last)).squeeze(-1)
        advantages, following = torch.zeros_like(rewards), torch.zeros_like(ahead)
        for step in reversed(range(len(rewards))):
            going_on = 1.0 - ends[step]
            error = rewards[step] + settings.discount * ahead * going_on - values[step]
            following = error + settings.discount * settings.gae_lambda * going_on * following
            advantages[step], ahead = following, values[step]
        flat = [part.flatten(0, 1) for part in (observations, actions, log_probs, advantages, advantages + values)]
        flat[3] = (flat[3] - flat[3].mean()) / (flat[3].std() + 1e-8)
        for _ in range(settings.num_epochs):
            order = torch.randperm(len(flat[0]))
            for start in range(0, len(order), settings.minibatch_size):
                self._step(*(part[order[start : start + settings.minibatch_size]] for part in flat))
        self.lived.clear()

    def _step(self, seen: Tensor, actions: Tensor, log_probs: Tensor, advantages: Tensor, returns: Tensor) -> None:
        settings = self.settings
        policy = self.actor(seen).log_softmax(-1)
        ratio = (policy.gather(1, actions[:, None])[:, 0] - log_probs).exp()
        entropy = -(policy.exp() * policy).sum(-1).mean()
        clipped = ratio.clamp(1 - settings.clip_range, 1 + settings.clip_range)
        policy_loss = -torch.minimum(ratio * advantages, clipped * advantages).mean()
        value_loss = 0.5 * (self.critic(seen).squeeze(-1) - returns).square().mean()
        loss = policy_loss + settings.value_weight * value_loss - settings.entropy_weight * entropy
        self.optimiser.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(self.parameters, settings.max_grad_norm)
        self.optimiser.step()


class PlainTraining:
    """Plain training loop: environments in a list and agents in a dict."""

    def __init__(self, makers: Sequence[Callable[[], Any]], settings: PlainSettings) -> None:
        self.envs, self.settings = [make() for make in makers], settings
        self._now = [env.reset(seed=seed)[0] for seed, env in enumerate(self.envs)]
        first = self.envs[0]
        self.agents = {
            agent: PlainAgent(first.observation_space(agent).shape[0], first.action_space(agent).n, settings)
            for agent in first.possible_agents
        }

    def iterate(self) -> int:
        """Collect a rollout and update every agent. Return the number of joint steps of the environments."""
        for _ in range(self.settings.rollout_length):
            self._step()
        for agent, one in self.agents.items():
            one.learn(self._seen(agent))
        return self.settings.rollout_length * len(self.envs)

    def _seen(self, agent: Any) -> np.ndarray[Any, Any]:
        return np.stack([observations[agent] for observations in self._now])

    def _step(self) -> None:
        seen = {agent: self._seen(agent) for agent in self.agents}
        acted = {agent: one.act(seen[agent]) for agent, one in self.agents.items()}
        chosen = {agent: actions.tolist() for agent, (actions, _, _) in acted.items()}
        results = [env.step({agent: chosen[agent][row] for agent in chosen}) for row, env in enumerate(self.envs)]
        for agent, one in self.agents.items():
            rewards = torch.tensor([result[1][agent] for result in results], dtype=torch.float32)
            ends = torch.tensor([float(result[2][agent] or result[3][agent]) for result in results])
            one.lived.append((torch.from_numpy(seen[agent]), *acted[agent], rewards, ends))
        self._now = [
            result[0] if env.agents else env.reset()[0] for env, result in zip(self.envs, results, strict=True)
        ]

    def close(self) -> None:
        for env in self.envs:
            env.close()


def _network(num_in: int, hidden: int, num_out: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(num_in, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, num_out)
    )


PLAIN = "plain loop"
ENV = "mpe2.simple_spread_v3"
IS_AT_LEAST = 2.0
"""Required speed of an iteration, as a multiple of the plain loop."""


@dataclass(frozen=True, kw_only=True)
class IterationPlan(BenchPlan):
    """Arguments of `python -m benchmarks iteration`. `modes` are update modes of parallel_envs, or `overlap`."""

    num_envs: int = 8
    num_workers: int = 2
    rollout_length: int = 128
    minibatch_size: int = 256
    modes: tuple[str, ...] = ("fused", OVERLAP)
    pace: Pace = field(default_factory=lambda: Pace(seconds=2.0, rounds=7))


@dataclass(frozen=True, kw_only=True)
class IterationRow:
    """Joint steps per second of one runner, learning included.

    `to_plain` is the speed as a multiple of the plain loop's. `shares` are the parts of the time of our runners, by
    name.
    """

    name: str
    steps: Spread | None = None
    to_plain: Spread | None = None
    shares: Mapping[str, float] = field(default_factory=dict)
    error: str | None = None


def measure_iterations(plan: IterationPlan, tell: Tell = lambda text: None) -> tuple[IterationRow, ...]:
    """Measure the plain loop and each of our modes. Return a row for each."""
    from parallel_envs.threads import one_torch_thread

    with ExitStack() as closing:
        closing.enter_context(one_torch_thread())
        loops = {mode: _ours(plan, mode, closing) for mode in plan.modes}
        iterate: dict[str, Callable[[], int]] = {PLAIN: _plain(plan, closing)}
        iterate |= {mode: partial(_iterate, loop) for mode, loop in loops.items()}
        for name, once in iterate.items():
            tell(f"opening {name}")
            for _ in range(4):  # `fused` records its operations in the third iteration
                once()
        samplers = {name: partial(_slice, once, loops.get(name), plan.pace.seconds) for name, once in iterate.items()}
        series = interleave(samplers, plan.pace.rounds, tell)
        rates = {name: rates_of(one) for name, one in series.items()}
        return tuple(
            IterationRow(
                name=name,
                steps=spread(own) if own else None,
                to_plain=paired_ratio(own, rates[PLAIN]) if name != PLAIN else None,
                shares=_shares(loops[name].learners.seconds) if name in loops else {},
                error=series[name].error,
            )
            for name, own in rates.items()
        )


def _plain(plan: IterationPlan, closing: ExitStack) -> Callable[[], int]:
    from benchmarks.iterations import PlainSettings, PlainTraining
    from benchmarks.zoo import resolve_zoo

    settings = PlainSettings(rollout_length=plan.rollout_length, minibatch_size=plan.minibatch_size)
    training = PlainTraining([resolve_zoo(ENV).factory] * plan.num_envs, settings)
    closing.callback(training.close)
    return training.iterate


def _ours(plan: IterationPlan, mode: str, closing: ExitStack) -> Loop:
    from parallel_envs.learners import IndependentLearners, PPOConfig
    from parallel_envs.learners.loops import LoopOptions, open_loop
    from parallel_envs.multiagent import MultiAgentEnvManager

    envs = MultiAgentEnvManager(ENV, num_envs=plan.num_envs, num_workers=plan.num_workers)
    closing.enter_context(envs)
    config = PPOConfig(rollout_length=plan.rollout_length, minibatch_size=plan.minibatch_size, hidden=(64, 64))
    is_update_mode = mode != OVERLAP
    update_mode = cast(UpdateModeName, mode) if is_update_mode else "fused"
    learners = closing.enter_context(IndependentLearners(envs, config, update_mode=update_mode))
    return closing.enter_context(open_loop(learners, LoopOptions(mode="sync" if is_update_mode else "overlap")))


def _iterate(loop: Loop) -> int:
    """Advance until all agents have learnt once more, from this rollout or (`overlap`) from the previous one."""
    before = loop.learners.steps
    while not loop.advance():
        pass
    return loop.learners.steps - before


def _slice(once: Callable[[], int], loop: Loop | None, seconds: float) -> Slice:
    """Run iterations for `seconds`, then wait until everything collected is learnt."""
    began = time.perf_counter()
    made = run_for(once, seconds)
    if loop is not None:
        loop.settle()
    return Slice(made.steps, time.perf_counter() - began)


def _shares(seconds: Mapping[str, float]) -> dict[str, float]:
    whole = sum(seconds.values()) or 1.0
    return {name: one / whole for name, one in seconds.items()}


# ---- report ---------------------------------------------------------------------------------------------------------


def iterations_report(rows: tuple[IterationRow, ...], settings: Mapping[str, object], title: str) -> Report:
    """Return the rows as a table with the bar below it."""
    table = FittingTable(title=title, title_justify="left")
    for heading in ("contestant", "joint steps/s", "to the plain loop", "quarters", "its time goes into"):
        table.add_column(heading)
    for row in rows:
        table.add_row(row.name, *_cells(row))
    notes = [
        f"{'PASS' if row.to_plain.median >= IS_AT_LEAST else 'FAIL'}  {row.name}: {row.to_plain.median:.2f} times the "
        f"plain loop, bar {IS_AT_LEAST:g}"
        for row in rows
        if row.to_plain is not None
    ]
    return Report("iteration", settings, [dataclasses.asdict(row) for row in rows], table, notes)


def _cells(row: IterationRow) -> list[str]:
    if row.steps is None:
        return ["", "", "", row.error or ""]
    ratio = row.to_plain
    shares = ", ".join(f"{name} {share:.0%}" for name, share in row.shares.items())
    told = (
        ["", ""] if ratio is None else [f"{ratio.median:.2f}", f"{ratio.lower_quartile:.2f}-{ratio.upper_quartile:.2f}"]
    )
    return [f"{row.steps.median:,.0f}", *told, shares]


def iteration(
    modes: Annotated[str, typer.Option(help="Our modes: update modes or overlap, comma-separated.")] = "fused,overlap",
    num_envs: Annotated[int, typer.Option(min=1)] = 8,
    workers: Annotated[int, typer.Option(min=1, help="Worker processes for our environments.")] = 2,
    seconds: Annotated[float, typer.Option(min=0.001, help="Length of one slice.")] = 2.0,
    rounds: Annotated[int, typer.Option(min=1, help="Slices of each runner.")] = 7,
    json: Annotated[Path | None, typer.Option("--json", help="Write the results to this file, too.")] = None,
) -> None:
    """Measure whole iterations of independent PPO on simple_spread beside a plain loop, in turns."""
    chosen = tuple(name.strip() for name in modes.split(","))
    plan = IterationPlan(
        num_envs=num_envs, num_workers=workers, modes=chosen, pace=Pace(seconds=seconds, rounds=rounds)
    )
    rows = measure_iterations(plan)
    title = f"PPO on {ENV}, {num_envs} envs, rollouts of {plan.rollout_length} steps; {rounds} slices of {seconds:g} s"
    report = iterations_report(rows, plan.settings, title)
    Console().print(report.table, *report.notes, sep="\n")
    if json is not None:
        report.write(json)
