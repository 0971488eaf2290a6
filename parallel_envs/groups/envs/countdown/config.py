"""What can be asked of a `CountdownEnv`."""

from __future__ import annotations

from dataclasses import dataclass

from parallel_envs.choices import NumberUse, TextMode, words
from parallel_envs.groups.envs.countdown.reach import reach
from parallel_envs.groups.envs.fields import Span, choice, count, count_or_none, number, path_or_none, span, text

OPERATORS = "+-*/"


@dataclass(frozen=True, kw_only=True)
class CountdownConfig:
    """What puzzles are like, and what is paid for what."""

    num_numbers: Span = (3, 4)
    """The fewest and the most numbers of a puzzle."""
    number_range: Span = (1, 99)
    """The smallest and the largest number."""
    target_range: Span = (10, 100)
    """The smallest and the largest target."""
    operators: str = OPERATORS
    """What puzzles are made with and answers may use: some of `+-*/`. Without `-` there are no negative numbers."""
    use: NumberUse = "exactly_once"
    """How often an answer uses each number: `exactly_once`, or `at_most_once`."""
    data_path: str | None = None
    """A file of puzzles with fields `target` and `nums`, as published for TinyZero and RAGEN: Parquet (extra `data`),
    JSON or JSON Lines. None: they are made from the seed."""
    max_instances: int | None = None
    """How many puzzles of the file are used. None: all."""
    val_share: float = 0.1
    """The part of the file that is for the mode `val` alone. 0: both modes use all."""
    score: float = 1.0
    """Paid for the target."""
    format_score: float = 0.1
    """Paid for an answer that uses the numbers as it must, and comes to something else."""
    max_attempts: int = 1
    """Answers to an episode."""
    max_answer_chars: int = 500
    """An answer that is longer is not read."""
    render_mode: TextMode = "text"
    """There is only `text`."""

    def __post_init__(self) -> None:
        set_field = object.__setattr__  # the dataclass is frozen for everybody else
        set_field(self, "num_numbers", span("num_numbers", self.num_numbers, least=1, most=20))
        set_field(self, "number_range", span("number_range", self.number_range, least=0, most=10**9))
        set_field(self, "target_range", span("target_range", self.target_range, least=0, most=10**12))
        set_field(self, "data_path", path_or_none("data_path", self.data_path))
        count_or_none("max_instances", self.max_instances)
        number("val_share", self.val_share, least=0.0, most=1.0)
        choice("use", self.use, words(NumberUse))
        number("score", self.score)
        number("format_score", self.format_score)
        count("max_attempts", self.max_attempts)
        count("max_answer_chars", self.max_answer_chars, most=10_000)
        choice("render_mode", self.render_mode, words(TextMode))
        self._check_operators()
        if self.data_path is None:
            self._check_targets_are_in_reach()

    def _check_operators(self) -> None:
        if set(text("operators", self.operators)) - set(OPERATORS):
            raise ValueError(f"operators={self.operators!r} has other signs than {OPERATORS!r}. Give some of these.")

    def _check_targets_are_in_reach(self) -> None:
        fewest, most = self.num_numbers if self.use == "exactly_once" else (1, self.num_numbers[1])
        spans = [one for one in reach(self.number_range, self.operators, most)[fewest - 1 :] if one is not None]
        if not any(low <= self.target_range[1] and high >= self.target_range[0] for low, high in spans):
            raise ValueError(
                f"target_range={self.target_range} is out of reach of num_numbers={self.num_numbers}, "
                f"number_range={self.number_range} and operators={self.operators!r}. Widen one of the ranges."
            )
