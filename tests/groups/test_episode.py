"""What is known of an episode, and the figures of groups and tags."""

from __future__ import annotations

import itertools
import sys
from types import FrameType
from typing import Any

import numpy as np
import pytest

from parallel_envs.groups.episode import Episode, EpisodeMetrics, means_by_tag, with_pass_at_k
from parallel_envs.groups.registry import EnvSpec
from parallel_envs.groups.transport import Played

NAMES: dict[str, Any] = {"tag": "Tag", "env_type": "kind", "config": None, "env_instruction": "", "max_tokens": None}
SEAT = EnvSpec(env_id=0, group_id=0, max_actions_per_traj=5, **NAMES)
SAID = 0, "I go.", "<think>...</think> I go.", ["go"]


def episode(first: Any = "start") -> Episode:
    return Episode(SEAT, 3, "train", first)


def turn(info: dict[str, Any], *, terminated: bool = False, truncated: bool = False, action: str = "go") -> Played:
    return "state", 1.0, terminated, truncated, info, [action], True, None


def after(info: dict[str, Any], **ends: Any) -> Episode:
    one = episode()
    one.state, _ = one.record_turn(turn(info, **ends), SAID, -0.1)
    return one


def facts(one: Episode) -> Any:
    return one.entry(), one.status, one.replay_target


def noted_but_struck(one: Episode, line: int) -> bool:
    """Note a turn, and be struck before so many lines have been done. False: there are not so many."""
    left = line

    def trace(frame: FrameType, event: str, what: object) -> Any:
        nonlocal left
        if event == "line" and frame.f_code is Episode.record_turn.__code__:
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        one.record_turn(turn({"n": 70}, action="away"), SAID, -0.1)
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


@pytest.mark.parametrize("in_vain", [False, True])
def test_a_turn_that_was_noted_in_vain_or_to_any_line_did_not_happen(in_vain: bool) -> None:
    one, plain, num_lines = after({"n": 3}), after({"n": 3}), 0
    plain.state, _ = plain.record_turn(turn({"n": 5}), SAID, -0.1)
    while noted_but_struck(one, num_lines):
        again = after({"n": 3})
        if in_vain:
            again.record_turn(turn({"n": 70, "success": True}, action="away"), SAID, -0.1)
        noted_but_struck(again, num_lines)
        assert facts(again) == (after({"n": 3}).entry(), one.status, one.replay_target)
        again.state, entry = again.record_turn(turn({"n": 5}), SAID, -0.1)
        assert entry == again.entry()
        assert facts(again) == facts(plain)
        assert again.metrics() == plain.metrics() == {"n": 4.0, "num_actions": 2.0}
        num_lines += 1
    assert num_lines > 10


def test_the_status_says_what_the_environment_said() -> None:
    for ends in itertools.product((True, False), repeat=2):
        status = after({}, terminated=ends[0], truncated=ends[1]).status
        assert (status.terminated, status.truncated, status.done) == (*ends, any(ends))


def test_what_is_no_number_and_no_truth_has_no_metric_and_success_that_is_not_told_has_none() -> None:
    one = after({"n": 2, "huge": 10**400, "success": np.array([True, False]), "word": "go", "flag": np.True_})
    assert one.metrics() == {"n": 2.0, "flag": 1.0, "success": 0.0, "num_actions": 1.0}
    other = after({"n": 2})
    assert other.metrics() == {"n": 2.0, "num_actions": 1.0}
    assert one.status.success is other.status.success is False


def test_states_with_pictures() -> None:
    for images, text, told in (
        (["one"], "", {"state": "<images>", "images": ["one"]}),
        (("one", "two"), "seen", {"state": "seen", "images": ["one", "two"]}),
        (np.zeros((2, 1, 1, 3)), "", {"state": "<images><images>"}),
        (None, "", {"state": "", "images": []}),
        (5, "seen", {"state": {"text": "seen", "images": 5}}),
    ):
        [item] = episode({"text": text, "images": images}).entry()["history"]
        assert {name: item[name] for name in told} == told


# ---- figures of groups and tags -------------------------------------------------------------------------------------


def of(group: int, tag: str = "A", told: Any = None, **figures: float) -> EpisodeMetrics:
    return EpisodeMetrics(tag, group, figures) if told is None else EpisodeMetrics(tag, group, figures, told)


NO, YES = (dict[str, Any](success=value) for value in (0.0, 1.0))
FAILED, SILENT = dict[str, Any](failed=1.0), dict[str, Any](num_actions=0.0)


@pytest.mark.parametrize(
    ("figures", "success", "passes", "means"),
    [
        (  # a group passes if any of it succeeds
            [of(0, **NO), of(0, **YES), of(1, **NO), of(1, **NO)],
            *([0.0, 1.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0], {"A/failed": 0.0, "A/pass@2": 0.5, "A/success": 0.25}),
        ),
        (  # those that failed count in no mean
            [of(0, far=3.0, **YES), of(0, **FAILED)],
            *([1.0, None], [1.0, 1.0], {"A/failed": 0.5, "A/far": 3.0, "A/pass@2": 1.0, "A/success": 1.0}),
        ),
        ([of(0, **FAILED)] * 2, [None] * 2, [None] * 2, {"A/failed": 1.0}),  # neither passed nor not
        # where none tells of success, none is made up
        ([of(0, num_actions=3.0), of(0, **SILENT)], [None] * 2, [None] * 2, {"A/failed": 0.0, "A/num_actions": 1.5}),
        (  # without a word it has not succeeded where others of the tag tell
            [of(0, **YES), of(0, num_actions=2.0), of(1, **SILENT), of(1, **FAILED), of(2, "B", n=2.0)],
            *([1.0, 0.0, 0.0, None, None], [1.0, 1.0, 0.0, 0.0, None], {"A/success": 1 / 3, "B/n": 2.0}),
        ),
        ([of(0, **SILENT)], [0.0], [0.0], {"A/num_actions": 0.0}),  # where nothing was done, none has succeeded
    ],
)
def test_success_and_pass_at_k(
    figures: list[EpisodeMetrics], success: list[Any], passes: list[Any], means: dict[str, float]
) -> None:
    named = with_pass_at_k(figures, 2)
    assert [one.get("A/success") for one in named] == success
    assert [one.get("A/pass@2") for one in named] == passes
    told = means_by_tag(figures, named)
    assert {name: told[name] for name in means} == pytest.approx(means)


def test_turns_in_which_nothing_was_done_count_as_0_of_what_others_told() -> None:
    figures = [
        of(0, told={"valid"}, num_actions=3.0, valid=1.0, own=5.0),
        of(0, told=set(), num_actions=0.0, own=3.0),
        of(0, num_actions=0.0),
        of(0, told=set(), failed=1.0),
        of(1, "B", set(), num_actions=0.0),
    ]
    named = with_pass_at_k(figures, 4)
    assert [one.get("A/valid") for one in named] == [1.0, 0.0, None, None, None]
    assert "B/valid" not in named[4]
    means = means_by_tag(figures, named)
    assert (means["A/valid"], means["A/own"], means["A/failed"]) == (0.5, 4.0, 0.25)
