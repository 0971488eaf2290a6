"""Which worker an environment lives in, which are late or lost with their worker, and which are asked again."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallel_envs.engine import Death
from parallel_envs.errors import WorkerDied
from parallel_envs.groups.env_workers import LossPolicy, UnansweredRequest
from parallel_envs.groups.failures import EnvFailure, timeout_failure
from parallel_envs.groups.placement import assign_workers
from parallel_envs.groups.transport import (
    MAKING,
    REPLAYING,
    SENDING,
    Job,
    Replay,
    Request,
    TimeLimits,
)

LIMITS = TimeLimits(step=2.0, reset=5.0, start=9.0)
REPLAY = Replay(0, "train", ("left", "left", "left"), 3)

# ---- the clock: what a worker writes is what the manager reads ------------------------------------------------------


def test_how_long_anything_may_take() -> None:
    assert [LIMITS.of(job.value) for job in Job] == [5.0, 2.0, 2.0, 2.0]
    assert (LIMITS.of(REPLAYING, REPLAY), LIMITS.of(MAKING)) == (11.0, 9.0)
    assert (LIMITS.of(SENDING), TimeLimits(step=90.0).of(SENDING)) == (60.0, 90.0)
    activities = (Job.RESET.value, Job.PLAY.value, REPLAYING, MAKING, SENDING)
    assert {TimeLimits().of(doing, REPLAY) for doing in activities} == {math.inf}


# ---- deadlines ------------------------------------------------------------------------------------------------------


def test_a_late_environment_is_told_with_its_limit_and_its_stack() -> None:
    for doing, advice in {
        MAKING: "If 'Tag' needs longer, give it more: es_manager.start_timeout.",
        REPLAYING: "If 'Tag' needs longer, give it more: es_manager.reset_timeout or es_manager.step_timeout (",
        "its reset": "If 'Tag' needs longer, give it more: es_manager.reset_timeout.",
        "its turn": "If 'Tag' needs longer, give it more: es_manager.step_timeout.",
        SENDING: "its states be smaller, or give it more: es_manager.step_timeout",
    }.items():
        late = timeout_failure(1, "Tag", doing, 9.0, 0, "a stack")
        assert (late.kind, late.doing) == ("timeout", doing)
        for words in (f"Env 1 did not answer within 9.0 seconds during {doing}.", advice, "a stack"):
            assert words in str(late)


# ---- after a loss ---------------------------------------------------------------------------------------------------

TAGS = dict.fromkeys(range(4), "Tag")
TURN = Request(Job.PLAY, {env: (["go"], 1) for env in range(4)})
ALL = [0, 1, 2, 3]


def loss(*at_work: int, doing: str = "its turn", late: dict[int, EnvFailure] | None = None) -> UnansweredRequest:
    return UnansweredRequest(0, Death(0, 99, -9), dict.fromkeys(at_work, doing), late or {})


@pytest.fixture
def record() -> LossPolicy:
    return LossPolicy(TURN, TAGS)


LATE = timeout_failure(2, "Tag", "its turn", 1.0, 0, "a stack")


@pytest.mark.parametrize(
    ("losses", "failed", "again"),
    [
        ([(loss(2, late={2: LATE}), ALL)], {2: ("timeout", "its turn")}, [[0, 1, 3]]),
        ([(loss(1), ALL)], {}, [[0, 2, 3], [1]]),
        ([(loss(1), ALL), (loss(1), [1])], {1: ("death", "its turn")}, [[]]),
        ([(loss(1), [1]), (loss(1, doing=MAKING), [1])], {1: ("death", MAKING)}, [[]]),
        ([(loss(0, 1, doing=SENDING), [0, 1])], {}, [[], [0], [1]]),
        ([(loss(0, 1, doing=SENDING), [0, 1])] + [(loss(0, doing=SENDING), [0])] * 2, {0: ("death", SENDING)}, [[]]),
        ([(loss(1, 3), ALL)], {}, [[0, 2], [1], [3]]),
        ([(loss(1, 3), ALL), (loss(3), [3])], {}, [[], [3]]),
        ([(loss(1, 3), ALL), (loss(3), [3]), (loss(3), [3])], {3: ("death", "its turn")}, [[]]),
        ([(loss(2), [0])], {}, [[0]]),  # it was at an earlier request
    ],
)
def test_which_have_failed_with_their_worker_and_which_are_asked_again(
    losses: list[Any], failed: dict[int, Any], again: list[list[int]], record: LossPolicy
) -> None:
    told, then = [record.decide(*one) for one in losses][-1]
    assert ({env: (one.kind, one.doing) for env, one in told.items()}, then) == (failed, again)


def test_the_env_under_construction_is_asked_first_and_its_failure_ends_a_reset() -> None:
    record = LossPolicy(Request(Job.RESET, {env: (env, "train") for env in ALL}), TAGS)
    assert record.decide(loss(1, doing=MAKING), ALL) == ({}, [[1], [0, 2, 3]])
    failed, _ = record.decide(loss(1, doing=MAKING), [1])
    assert record.is_hopeless(failed)
    assert not LossPolicy(TURN, TAGS).is_hopeless(failed)


def test_a_second_death_is_told_with_what_the_env_was_at(record: LossPolicy, caplog: pytest.LogCaptureFixture) -> None:
    record.decide(loss(1), [1])
    failed, _ = record.decide(loss(1, doing=MAKING), [1])
    assert "It was the second worker in this request that died with this environment alone at work." in str(failed[1])
    assert "(SIGKILL) during its construction (Tag)" in str(failed[1])
    assert "(SIGKILL) during its construction." in caplog.text


def test_a_worker_that_dies_with_no_env_at_work_is_replaced_a_few_times_only(record: LossPolicy) -> None:
    for _ in range(5):
        assert record.decide(loss(), ALL) == ({}, [ALL])
    with pytest.raises(WorkerDied, match="as did the workers that replaced it"):
        record.decide(loss(), ALL)


# ---- placement ------------------------------------------------------------------------------------------------------


@given(kinds=st.lists(st.sampled_from("abc"), min_size=1, max_size=40), num_workers=st.integers(1, 8))
def test_workers_hold_equally_many_and_few_hold_a_kind(kinds: list[str], num_workers: int) -> None:
    num_workers = min(num_workers, len(kinds))
    homes = assign_workers(dict(enumerate(kinds)), num_workers)
    assert homes.keys() == set(range(len(kinds)))
    counts = Counter(homes.values())
    assert set(counts) == set(range(num_workers))
    assert max(counts.values()) - min(counts.values()) <= 1
    for kind, number in Counter(kinds).items():
        holders = {homes[env] for env, own in enumerate(kinds) if own == kind}
        assert len(holders) <= -(-number // min(counts.values())) + 1


@pytest.mark.parametrize(("kinds", "homes"), [("abababab", [0, 1] * 4), ("aaaaaa", [0, 1] * 3)])
def test_kinds_that_fill_workers_are_apart_and_members_of_one_are_dealt_out(kinds: str, homes: list[int]) -> None:
    assert [home for _, home in sorted(assign_workers(dict(enumerate(kinds)), 2).items())] == homes
