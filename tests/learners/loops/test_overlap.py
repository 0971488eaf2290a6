"""Learning while collecting: one update behind, and the same whatever the timing."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from parallel_envs.choices import UpdateModeName
from parallel_envs.learners import IndependentLearners
from parallel_envs.learners.agent import LearnerPolicy
from parallel_envs.learners.algorithm import update_one
from parallel_envs.learners.loops import LoopOptions, learner_thread, open_loop
from parallel_envs.testing import assert_same_batch
from tests.learners.lives import time_is_up_when
from tests.learners.loops.scenes import CASES, GRU, PPO, SAC, advance, jobs_of, learners, unhurried
from tests.learners.test_independent import Pressing

STEPS = 75


def in_turn(made: IndependentLearners) -> None:
    """Collect, then learn: one thing after another, each agent by itself."""
    for _ in range(STEPS):
        made.step()
        for agent, learner in made.agents.items():
            if learner.ready and (plan := learner.plan()) is not None:
                learner.finish(update_one(learner.parameters, plan))
                made.policy.load_state_dict({agent: learner.acting_weights()})
                learner.acting_version += 1


def states_after(config: Any, advanced: Callable[[IndependentLearners], object]) -> Any:
    with learners(config) as made:
        advanced(made)
        return made.states()


def looped(how: LoopOptions) -> Callable[[IndependentLearners], None]:
    def run(made: IndependentLearners) -> None:
        with open_loop(made, how) as loop:
            advance(loop, STEPS)

    return run


SERIAL = LoopOptions(mode="overlap", learn_in="serial")
SOME = [
    pytest.param(case, marks=pytest.mark.slow) if case in ("ppo", "prioritized and sac") else case for case in CASES
]


@pytest.mark.parametrize("case", SOME)
def test_sync_and_overlap_are_the_same_to_the_bit_whatever_the_timing(case: str) -> None:
    """`sync` is one thing after another. `overlap` is not, otherwise this would mean nothing."""
    by_turns = states_after(CASES[case], in_turn)
    assert_same_batch(states_after(CASES[case], looped(LoopOptions())), by_turns)
    expected = states_after(CASES[case], looped(SERIAL))
    weights = [states["blue"]["arrays"]["weights"] for states in (expected, by_turns)]
    assert not np.array_equal(*weights)
    assert expected["blue"]["counters"] == by_turns["blue"]["counters"]
    with learners(CASES[case]) as made, unhurried(made, 1, mode="overlap") as loop:
        advance(loop, STEPS)
        assert_same_batch(made.states(), expected)


@pytest.mark.parametrize("case", ["ppo and sac", "gru and ppo"])
def test_the_first_update_is_that_of_sync_and_each_later_one_is_exactly_one_behind(case: str) -> None:
    with learners(CASES[case]) as made, unhurried(made, 5, mode="overlap") as loop:
        jobs = jobs_of(loop)
        advance(loop, STEPS)
        report = loop.report()
    for agent, lag in report.lags.items():
        own = [job for job in jobs if job.agent == agent]
        assert [job.version for job in own] == list(range(len(own)))
        assert [set(job.lags.tolist()) for job in own] == [{0}, *[{1}] * (len(own) - 1)]
        assert (lag.least, lag.most) == (0, 1)
        assert 0.8 < lag.mean < 1
        if agent == "blue" and case == "ppo and sac":
            continue
        assert [len(set(job.versions.tolist())) for job in own] == [1] * len(own)  # one acts throughout a rollout
        assert [len(job.versions) for job in own] == [int(job.plan.arrays["valid"].sum()) for job in own]


def test_every_transition_is_stamped_also_when_all_is_settled_in_the_middle_of_a_rollout() -> None:
    with learners({"red": PPO, "blue": SAC}) as made, unhurried(made, 5, mode="overlap") as loop:
        jobs = jobs_of(loop)
        for num_steps in (14, 3, 10, 8, 40):
            advance(loop, num_steps)
        red = [job for job in jobs if job.agent == "red"]
        assert len(red) >= 4
        assert [len(set(job.versions.tolist())) for job in red] == [1] * len(red)
        assert max(int(job.lags.max()) for job in red) == 1
        blue = made.agents["blue"]
        stamps = blue.stamps[: len(blue.memory)]  # type: ignore[arg-type]  # a replay buffer
        assert stamps[0] == 0
        assert np.all(np.diff(stamps) >= 0)
        assert stamps[-1] in (blue.version - 2, blue.version - 1)
        kept = made.states()["blue"]
        blue.stamps[:] = 0
        blue.load_state(kept)
        np.testing.assert_array_equal(blue.stamps[: len(stamps)], kept["memory"]["arrays"]["versions"])


@pytest.mark.parametrize("how", [{"mode": "overlap"}, {"mode": "free", "queue": 2}])
def test_an_error_of_an_environment_or_of_learning_is_raised_and_the_learners_can_be_kept(
    how: Any, tmp_path: Path
) -> None:
    with learners(PPO, kind=Tired) as made:
        with pytest.raises(OSError, match="no more"):
            made.train(10_000, learn_in="thread", **how)
        made.save(tmp_path / "kept")
        assert made.updates > 0
    with learners(PPO) as made:
        made.load(tmp_path / "kept")
        made.train(40, learn_in="serial", **how)
        before, left = made.updates, [0, 0, 0]

        def fail() -> None:
            with unhurried(made, 1, **how) as loop:
                opened: Any = loop
                update = opened.updates.mode.update

                def failing(plans: Any) -> Any:
                    if not left:
                        raise MemoryError("too much")
                    left.pop()
                    return update(plans)

                opened.updates.mode.update = failing
                advance(loop, 1000)

        with pytest.raises(MemoryError, match="too much"):
            fail()
        assert made.updates >= before + 2
        made.train(40)


@pytest.mark.parametrize("config", [PPO, GRU])
def test_plans_say_how_likely_actions_were_for_the_weights_that_took_them(
    config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For recurrent agents this includes the memory at that time, across episodes and rollouts."""
    outputs: dict[int, list[Any]] = {}
    step_batch = LearnerPolicy.step_batch

    def noted(policy: LearnerPolicy, observations: Any, rows: Any = None) -> Any:
        choose = policy.head.choose

        def note(given: Any, mask: Any, noise: Any) -> Any:
            outputs.setdefault(id(policy), []).append((rows, torch.tensor(given)))
            return choose(given, mask, noise)

        with monkeypatch.context() as patched:
            patched.setattr(policy.head, "choose", note)
            return step_batch(policy, observations, rows)

    monkeypatch.setattr(LearnerPolicy, "step_batch", noted)
    with learners(config, strategy="sequential") as made, unhurried(made, 5, mode="overlap") as loop:
        jobs = jobs_of(loop)
        advance(loop, 3 * config.rollout_length)
        assert len(jobs) == 6
        for agent, learner in made.agents.items():
            given = iter(outputs[id(made.policy.policy[agent])])  # type: ignore[index]  # one for each agent
            for job in (job for job in jobs if job.agent == agent):
                arrays = job.plan.arrays
                for step in range(config.rollout_length):
                    if not arrays["valid"][step].any():
                        continue  # environments were reset: nobody was asked
                    rows, seen = next(given)
                    actions = torch.from_numpy(np.array(arrays["actions"][step][rows]))
                    expected = learner.algorithm.head.log_prob(seen, actions, None)
                    np.testing.assert_allclose(arrays["behaviour"][step][rows], expected, atol=1e-5)


def test_fused_updates_come_to_the_same_with_and_without_vtrace_which_makes_a_difference() -> None:
    found: dict[bool, list[Any]] = {}
    for vtrace, mode in itertools.product((False, True), ("sequential", "fused")):
        with learners({"red": PPO, "blue": PPO}, update_mode=cast(UpdateModeName, mode)) as made:
            made.train(160, mode="overlap", learn_in="thread", vtrace=vtrace)
            own = [state["arrays"]["weights"] for state in made.states().values()]
            found.setdefault(vtrace, []).append(np.concatenate(own, 1))
    for one, other in found.values():
        np.testing.assert_allclose(other, one, atol=1e-5)
    assert abs(found[True][0] - found[False][0]).max() > 1e-3


class Tired(Pressing):
    """Raises in its ninth episode."""

    episodes = 0

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.episodes += 1
        if self.episodes == 9:
            raise OSError("no more")
        return super().reset(seed, options)


def test_a_watcher_may_keep_learners_and_put_others_in_their_place() -> None:
    kept = []

    def watch(made: IndependentLearners) -> None:
        if made.updates == 2:
            kept.append(made.states())
        if made.updates == 4:
            made.load_states(kept[0])

    with learners(PPO) as made:
        made.train(300, watch, mode="overlap", learn_in="thread")
        assert made.agents["red"].counters["updates"] < made.updates


def test_in_workers_it_is_the_same_and_one_that_dies_or_hangs_loses_nothing() -> None:
    expected = states_after(PPO, looped(SERIAL))
    lost: dict[int, int] = {}

    def strike(made: IndependentLearners) -> None:
        mode: Any = made.mode
        if made.updates in (1, 3) and made.updates not in lost:
            time_is_up_when(mode, lambda pid: pid == lost.get(3))
            lost[made.updates] = mode._pool.pid(0)
            os.kill(mode._pool.pid(0), signal.SIGKILL if made.updates == 1 else signal.SIGSTOP)

    with learners(PPO) as made:
        with open_loop(made, LoopOptions(mode="overlap")) as loop:
            for _ in range(STEPS):
                if loop.advance():
                    strike(made)
            loop.settle()
            mode: Any = made.mode
            mine, its = (os.getpriority(os.PRIO_PROCESS, pid) for pid in (0, mode._pool.pid(0)))
            assert its == min(mine + 5, 19)  # its third process gives way, too
        assert len(set(lost.values())) == 2
        assert_same_batch(made.states(), expected)


def test_a_learner_that_hangs_is_ended_when_the_caller_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learner_thread, "_GRACE_SECONDS", 0.05)

    class Enough(Exception):
        """The caller stops."""

    def leave_hanging() -> None:
        """The second update is never finished."""
        with open_loop(made, LoopOptions(mode="overlap")) as loop:
            opened: Any = loop
            for _ in range(19):
                loop.advance()
            opened.updates.wait_until(lambda updates: not updates.num_unfinished())
            mode: Any = made.mode
            os.kill(mode._pool.pid(0), signal.SIGSTOP)
            loop.advance()
            opened.updates.wait_until(lambda updates: not updates.num_waiting)  # it has been begun
            raise Enough

    with learners(PPO) as made:
        with pytest.raises(Enough):
            leave_hanging()
        assert made.updates == 1
        made.train(80, mode="overlap")
        assert made.updates == 3
