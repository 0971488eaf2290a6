"""Figures of groups and tags, from those of episodes."""

from __future__ import annotations

from parallel_envs.groups.episode import EpisodeMetrics, means_by_tag, with_pass_at_k


def test_a_group_passes_if_anybody_succeeds() -> None:
    figures = [
        EpisodeMetrics("A", 0, {"success": 0.0}),
        EpisodeMetrics("A", 0, {"success": 1.0}),
        EpisodeMetrics("A", 1, {"success": 0.0}),
        EpisodeMetrics("A", 1, {"success": 0.0}),
    ]
    named = with_pass_at_k(figures, 2)
    assert [one["A/pass@2"] for one in named] == [1.0, 1.0, 0.0, 0.0]
    assert means_by_tag(figures, named) == {"A/failed": 0.0, "A/pass@2": 0.5, "A/success": 0.25}


def test_those_that_failed_count_in_no_mean() -> None:
    figures = [EpisodeMetrics("A/b", 0, {"success": 1.0, "far": 3.0}), EpisodeMetrics("A/b", 0, {"failed": 1.0})]
    means = means_by_tag(figures, with_pass_at_k(figures, 2))
    assert means == {"A/b/failed": 0.5, "A/b/far": 3.0, "A/b/pass@2": 1.0, "A/b/success": 1.0}


def test_a_group_of_which_all_failed_neither_passed_nor_not() -> None:
    figures = [EpisodeMetrics("A", 0, {"failed": 1.0})] * 2
    named = with_pass_at_k(figures, 2)
    assert named == [{"A/failed": 1.0}] * 2
    assert means_by_tag(figures, named) == {"A/failed": 1.0}


def test_where_nobody_tells_of_success_none_is_made_up() -> None:
    figures = [EpisodeMetrics("A", 0, {"num_actions": 3.0}), EpisodeMetrics("A", 0, {"num_actions": 0.0})]
    named = with_pass_at_k(figures, 2)
    assert named == [{"A/num_actions": 3.0}, {"A/num_actions": 0.0}]
    assert means_by_tag(figures, named) == {"A/failed": 0.0, "A/num_actions": 1.5}


def test_who_told_nothing_has_not_succeeded_where_others_of_the_tag_tell() -> None:
    figures = [
        EpisodeMetrics("A", 0, {"success": 1.0, "num_actions": 3.0}),
        EpisodeMetrics("A", 0, {"num_actions": 2.0}),
        EpisodeMetrics("A", 1, {"num_actions": 0.0}),
        EpisodeMetrics("A", 1, {"failed": 1.0}),
        EpisodeMetrics("B", 2, {"num_actions": 2.0}),
    ]
    named = with_pass_at_k(figures, 2)
    assert [one.get("A/success") for one in named] == [1.0, 0.0, 0.0, None, None]
    assert [one.get("A/pass@2") for one in named] == [1.0, 1.0, 0.0, 0.0, None]
    assert named[4] == {"B/num_actions": 2.0}


def test_turns_in_which_nothing_was_done_count_as_0_of_what_others_told() -> None:
    figures = [
        EpisodeMetrics("A", 0, {"num_actions": 3.0, "valid": 1.0, "own": 5.0}, {"valid"}),
        EpisodeMetrics("A", 0, {"num_actions": 0.0, "own": 3.0}, set()),
        EpisodeMetrics("A", 0, {"num_actions": 0.0}),
        EpisodeMetrics("A", 0, {"failed": 1.0}, set()),
        EpisodeMetrics("B", 1, {"num_actions": 0.0}, set()),
    ]
    named = with_pass_at_k(figures, 4)
    assert [one.get("A/valid") for one in named] == [1.0, 0.0, None, None, None]
    assert "B/valid" not in named[4]
    means = means_by_tag(figures, named)
    assert (means["A/valid"], means["A/own"], means["A/failed"]) == (0.5, 4.0, 0.25)


def test_where_nothing_was_done_nobody_has_succeeded() -> None:
    assert with_pass_at_k([EpisodeMetrics("A", 0, {"num_actions": 0.0})], 4) == [
        {"A/success": 0.0, "A/num_actions": 0.0, "A/pass@4": 0.0}
    ]
