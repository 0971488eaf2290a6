"""How an evaluation's progress is shown: bars, and lines where there is no terminal."""

from __future__ import annotations

import io

from rich.console import Console

from parallel_envs.cli.progress import Tally, shown
from parallel_envs.evaluation import EpisodeRecord, Failure

BROKEN = Failure(kind="env", error_type="ValueError", message="no")


def record(mission: str, episode: int, failure: Failure | None = None) -> EpisodeRecord:
    return EpisodeRecord(mission=mission, episode=episode, seed=0, failure=failure)


class Stage:
    """A made-up console and a made-up clock."""

    def __init__(self, *, is_terminal: bool) -> None:
        self.now = 0.0
        self.written = io.StringIO()
        self.console = Console(file=self.written, force_terminal=is_terminal, width=110, color_system=None)

    def play(self, missions: tuple[str, ...], num_episodes: int, seconds: float = 1.0) -> str:
        """Play all episodes of these missions; every fourth fails."""
        work = [(mission, episode) for mission in missions for episode in range(num_episodes)]
        with shown(self.console, lambda: self.now) as progress:
            progress.begin(work, [])
            for place, (mission, episode) in enumerate(work):
                self.now += seconds
                progress.note(record(mission, episode, BROKEN if place % 4 == 3 else None))
        return self.written.getvalue()


def test_lines_come_now_and_then_and_at_the_end() -> None:
    lines = Stage(is_terminal=False).play(("m",), 24).splitlines()
    assert lines == [
        "10 of 24 episodes (42%), 1 episodes/s, 14 s left, 2 failed",
        "20 of 24 episodes (83%), 1 episodes/s, 4 s left, 5 failed",
        "24 of 24 episodes (100%), 1 episodes/s, 0 s left, 6 failed",
    ]


def test_bars_tell_missions_speed_time_left_and_failures() -> None:
    text = Stage(is_terminal=True).play(("easy", "hard"), 4)
    assert "easy" in text
    assert "4/4 1 failed" in text
    assert "1 episodes/s, 4 s left, 1 failed" in text
    assert "8/8 1 episodes/s, 0 s left, 2 failed" in text


def test_one_mission_has_one_bar() -> None:
    text = Stage(is_terminal=True).play(("easy",), 2)
    assert "easy" not in text
    assert "2/2" in text


def test_more_missions_than_fit_a_screen_have_bars_for_some() -> None:
    text = Stage(is_terminal=True).play(tuple(f"mission {number:02d}" for number in range(30)), 1)
    assert "mission 15" in text
    assert "mission 16" not in text
    assert "30/30" in text


def test_what_was_complete_before_is_done_but_no_speed() -> None:
    now = 0.0
    tally = Tally(lambda: now)
    now = 100.0
    tally.begin([("m", number) for number in range(10)], [record("m", 0), record("m", 1, BROKEN)])
    assert tally.text() == "2 of 10 episodes (20%), 0 episodes/s, ? left, 1 failed"
    now = 104.0
    tally.note(record("m", 2))
    assert tally.text() == "3 of 10 episodes (30%), 0.25 episodes/s, 28 s left, 1 failed"
