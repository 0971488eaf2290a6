"""What is known of an episode, whatever its environment tells."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import numpy as np
import pytest

from parallel_envs.groups.episode import Episode
from parallel_envs.groups.registry import EnvSpec
from parallel_envs.groups.transport import Played

SEAT = EnvSpec(
    env_id=0,
    group_id=0,
    tag="Tag",
    env_type="kind",
    config=None,
    max_actions_per_traj=5,
    env_instruction="",
    max_tokens=None,
)

SAID = 0, "I go.", "<think>...</think> I go.", ["go"]


def episode(first: Any = "start") -> Episode:
    return Episode(SEAT, 3, "train", first)


def after(info: dict[str, Any], *, terminated: bool = False, truncated: bool = False) -> Episode:
    one = episode()
    one.state, _ = one.record_turn(turn(info, terminated=terminated, truncated=truncated), SAID, -0.1)
    return one


def turn(info: dict[str, Any], *, terminated: bool = False, truncated: bool = False, action: str = "go") -> Played:
    return "state", 1.0, terminated, truncated, info, [action], True, None


def test_a_turn_that_was_noted_in_vain_did_not_happen() -> None:
    one, plain = episode(), episode()
    for info in ({"n": 1}, {"n": 3}):
        one.record_turn(turn({"n": 70, "success": True}, action="away"), SAID, -0.1)
        found = one.entry(), one.status, one.replay_target
        assert found == (plain.entry(), plain.status, plain.replay_target)
        for each in (one, plain):
            each.state, entry = each.record_turn(turn(info), SAID, -0.1)
            assert entry == each.entry()
    assert one.entry() == plain.entry()
    assert one.metrics() == plain.metrics() == {"n": 2.0, "num_actions": 2.0}


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


@pytest.mark.parametrize("cuts_off", [False, True])
def test_a_turn_whose_noting_is_cut_short_at_any_line_did_not_happen(cuts_off: bool) -> None:
    one, plain, num_lines = after({"n": 3}), after({"n": 3}), 0
    plain.state, _ = plain.record_turn(turn({"n": 5}), SAID, -0.1)
    while noted_but_struck(one, num_lines):
        again = after({"n": 3})
        if cuts_off:
            again.record_turn(turn({"n": 70}, action="away"), SAID, -0.1)
        noted_but_struck(again, num_lines)
        assert (again.entry(), again.status, again.replay_target) == (
            after({"n": 3}).entry(),
            one.status,
            one.replay_target,
        )
        again.state, _ = again.record_turn(turn({"n": 5}), SAID, -0.1)
        assert (again.entry(), again.status, again.replay_target) == (plain.entry(), plain.status, plain.replay_target)
        assert again.metrics() == plain.metrics()
        num_lines += 1
    assert num_lines > 10


@pytest.mark.parametrize(("terminated", "truncated"), [(True, True), (True, False), (False, True), (False, False)])
def test_the_status_says_what_the_environment_said(terminated: bool, truncated: bool) -> None:
    status = after({}, terminated=terminated, truncated=truncated).status
    assert (status.terminated, status.truncated, status.done) == (terminated, truncated, terminated or truncated)


def test_what_is_no_number_and_no_truth_has_no_metric_and_hides_no_other() -> None:
    one = after({"n": 2, "huge": 10**400, "success": np.array([True, False]), "word": "go", "flag": np.True_})
    assert one.metrics() == {"n": 2.0, "flag": 1.0, "success": 0.0, "num_actions": 1.0}
    assert not one.status.success


def test_success_that_nobody_told_of_has_no_figure() -> None:
    one = after({"n": 2})
    assert one.metrics() == {"n": 2.0, "num_actions": 1.0}
    assert one.status.success is False


@pytest.mark.parametrize(
    ("images", "text", "told"),
    [
        (["one"], "", {"state": "<images>", "images": ["one"]}),
        (("one", "two"), "seen", {"state": "seen", "images": ["one", "two"]}),
        (np.zeros((2, 1, 1, 3)), "", {"state": "<images><images>"}),
        (None, "seen", {"state": "seen", "images": []}),
        (None, "", {"state": "", "images": []}),
        (5, "seen", {"state": {"text": "seen", "images": 5}}),
    ],
)
def test_states_with_pictures(images: Any, text: str, told: dict[str, Any]) -> None:
    [item] = episode({"text": text, "images": images}).entry()["history"]
    assert {name: item[name] for name in told} == told
