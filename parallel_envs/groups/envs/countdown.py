"""Countdown: combine numbers into a target.

An answer is arithmetic as a language model writes it. It is read by a grammar and never run:

    answer  = sum [ "=" [ "+" | "-" ] number ]
    sum     = product { ("+" | "-") product }
    product = signed { ("*" | "/") signed }
    signed  = [ "+" | "-" ] ( number | "(" sum ")" )

The typographic signs of multiplication, division and minus are read as * / -. Values are exact fractions. There are no
powers, names or calls. An answer has at most 100 numbers of at most 12 digits, and brackets go 50 deep, so that time
and memory are bounded.
"""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Annotated, Any, NamedTuple

import numpy as np
from annotated_types import Interval

from parallel_envs.checks import is_whole
from parallel_envs.choices import NumberUse, TextMode
from parallel_envs.groups.envs.base import Act, Count, EnvConfig, Share, Text, TextEnv, step_info
from parallel_envs.groups.envs.records import read_entries, split_file
from parallel_envs.seeding import SeedTree

OPERATORS = "+-*/"
Few = Annotated[int, Interval(ge=1, le=20)]
Natural = Annotated[int, Interval(ge=0, le=10**12)]


@dataclass(frozen=True, kw_only=True)
class CountdownConfig(EnvConfig):
    """Config of a `CountdownEnv`."""

    num_numbers: tuple[Few, Few] = (3, 4)
    """The fewest and the most numbers of a puzzle."""
    number_range: tuple[Natural, Natural] = (1, 99)
    """The smallest and the largest number."""
    target_range: tuple[Natural, Natural] = (10, 100)
    """The smallest and the largest target."""
    operators: Text = OPERATORS
    """The operators of puzzles and answers: some of `+-*/`. Without `-` there are no negative numbers."""
    use: NumberUse = "exactly_once"
    """How often an answer uses each number: `exactly_once`, or `at_most_once`."""
    data_path: Text | None = None
    """A file of puzzles with fields `target` and `nums`, as published for TinyZero and RAGEN: Parquet (extra `data`),
    JSON or JSON Lines (`.jsonl`). None: puzzles are made from the seed."""
    max_instances: Count | None = None
    """How many puzzles of the file are used. None: all."""
    val_share: Share = 0.1
    """The part of the file that is for the mode `val` alone. 0: both modes use all."""
    score: float = 1.0
    """Reward for the target."""
    format_score: float = 0.1
    """Reward for an answer that uses the numbers correctly, but has another value."""
    max_attempts: Count = 1
    """Answers in an episode."""
    max_answer_chars: Annotated[int, Interval(ge=1, le=10_000)] = 500
    """An answer that is longer is not read."""
    render_mode: TextMode = "text"
    """There is only `text`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_spans("num_numbers", "number_range", "target_range")
        self._check_range("number_range[1]", self.number_range[1], 0, 10**9)
        if set(self.operators) - set(OPERATORS):
            raise ValueError(f"operators={self.operators!r} has other signs than {OPERATORS!r}. Give some of these.")
        if self.data_path is None:
            make_puzzle(self, np.random.default_rng(0))  # raises if these settings allow no puzzle


class CountdownEnv(TextEnv):
    """Combine the numbers into the target, by + - * / and brackets.

    Actions are texts such as `(25 - 1) * 4`; `= 96` may follow. An answer that is not arithmetic, or does not use the
    numbers correctly, has no reward (`action_is_valid` False); one that does and has another value than the target gets
    `format_score`; the target gets `score`, and terminates the episode, as does the last attempt.

    Puzzles that are made here can be solved: `puzzle.solution` is an answer, for oracles; no state contains it. Puzzles
    of a file are read when the env is made, and are not changed; their solution is None.
    """

    puzzle: Puzzle
    _seed_name = "countdown"

    def __init__(self, config: CountdownConfig | None = None) -> None:
        super().__init__(config or CountdownConfig())
        one, key = self.config, _puzzle_key
        self._puzzles: tuple[Sequence[Puzzle], Sequence[Puzzle]] = ((), ())  # none without a file
        if one.data_path is not None:
            self._puzzles = split_file(one.data_path, read_puzzles, key, one.val_share, one.max_instances)

    def _begin(self, seeds: SeedTree, training: bool) -> None:
        generator, puzzles = seeds.generator(), self._puzzles[0 if training else 1]
        self.puzzle = puzzles[int(generator.integers(len(puzzles)))] if puzzles else make_puzzle(self.config, generator)
        self._best = 0.0
        self._shown = self._question()

    def _question(self) -> str:
        return f"Target: {self.puzzle.target}, numbers: {', '.join(map(str, self.puzzle.numbers))}"

    def _act(self, action: Any) -> Act:
        reward, valid, success = 0.0, True, False
        try:
            value = self._read(action).value
            success = value == self.puzzle.target
            reward = self.config.score if success else self.config.format_score
            message = "Correct!" if success else f"That comes to {value}."
        except BadExpression as reason:
            valid, message = False, f"That is no answer: {reason}."
        terminated = success or self._steps >= self.config.max_attempts
        self._best = max(self._best, reward)
        self._shown = message if terminated else f"{message} {self._question()}"
        return reward, terminated, step_info(success, valid, valid)

    def _read(self, action: Any) -> Expression:
        """Return the expression in an answer. Raise BadExpression if it is not one, or not with these numbers."""
        if not isinstance(action, str):
            raise BadExpression("it is not a text")
        if len(action) > self.config.max_answer_chars:
            raise BadExpression(f"it has more than {self.config.max_answer_chars} characters")
        expression = read_expression(action)
        used, given = Counter(expression.numbers), Counter(self.puzzle.numbers)
        if extra := used - given:
            raise BadExpression(f"it uses {min(extra)} more often than it is there")
        if self.config.use == "exactly_once" and (left := given - used):
            raise BadExpression(f"it leaves out {min(left)}")
        if foreign := expression.operators - set(self.config.operators):
            raise BadExpression(f"it uses {min(foreign)!r}, where {' '.join(self.config.operators)} are allowed")
        return expression

    def metrics(self) -> Mapping[str, float]:
        """Return the best reward of the episode."""
        return {"best_score": self._best}


# ---- puzzles --------------------------------------------------------------------------------------------------------

_TRIES = 20_000

_RESULT: dict[str, Callable[[int, int], int | None]] = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right if left >= right else None,
    "*": lambda left, right: left * right,
    "/": lambda left, right: left // right if right and left % right == 0 else None,
}


@dataclass(frozen=True, slots=True)
class Puzzle:
    """Numbers and their target."""

    numbers: tuple[int, ...]
    target: int
    solution: str | None = None
    """A right answer, if the puzzle was made here."""


def make_puzzle(config: CountdownConfig, generator: np.random.Generator) -> Puzzle:
    """Return a puzzle that can be solved without negative numbers and fractions on the way."""
    low, high = config.number_range
    for _ in range(_TRIES):
        how_many = int(generator.integers(config.num_numbers[0], config.num_numbers[1] + 1))
        numbers = tuple(generator.integers(low, high + 1, how_many).tolist())
        used = how_many if config.use == "exactly_once" else int(generator.integers(1, how_many + 1))
        parts = [(number, str(number)) for number in numbers[:used]]
        while len(parts) > 1:  # combine two random parts
            first, second = generator.choice(len(parts), 2, replace=False).tolist()
            (left, left_words), (right, right_words) = parts[first], parts[second]
            sign = config.operators[int(generator.integers(len(config.operators)))]
            result = _RESULT[sign](left, right)
            if result is None:
                break
            rest = [part for index, part in enumerate(parts) if index not in (first, second)]
            parts = [*rest, (result, f"({left_words} {sign} {right_words})")]
        value, solution = parts[0]
        if len(parts) == 1 and config.target_range[0] <= value <= config.target_range[1]:
            shuffled = tuple(generator.permutation(numbers).tolist())
            return Puzzle(shuffled, value, solution[1:-1] if solution.startswith("(") else solution)
    raise ValueError(
        f"No puzzle with num_numbers={config.num_numbers}, number_range={config.number_range}, "
        f"target_range={config.target_range} and operators={config.operators!r} was found in {_TRIES} tries. "
        "Widen one of the ranges."
    )


def read_puzzles(path: str, most: int | None) -> Iterator[Puzzle]:
    """Yield the puzzles of a file."""
    for entry in read_entries(path, most, ("target", "nums")):
        target, numbers = entry.field("target"), entry.field("nums")
        if not _is_number(target):
            raise entry.error(f"`target` is {target!r}, where a whole number from 0 up is wanted.")
        if not isinstance(numbers, list) or not numbers or not all(map(_is_number, numbers)):
            raise entry.error(f"`nums` is {numbers!r}, where a list of whole numbers from 0 up is wanted.")
        yield Puzzle(tuple(numbers), target)


def _puzzle_key(puzzle: Puzzle) -> str:
    return f"{puzzle.target} from {sorted(puzzle.numbers)}"


def _is_number(value: Any) -> bool:
    return is_whole(value) and 0 <= value < 10**12


# ---- arithmetic -----------------------------------------------------------------------------------------------------

_MOST_NUMBERS = 100
_MOST_DIGITS = 12
_DEEPEST = 50

_VALUE = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
_TOKEN = re.compile(r"\s*([0-9]+|[-+*/()=])")
_SIGNS = str.maketrans({"\u00d7": "*", "\u00b7": "*", "\u00f7": "/", "\u2212": "-"})


class BadExpression(ValueError):
    """A text that is not arithmetic. The text of the error says why, in words for the language model."""


class Expression(NamedTuple):
    """The value of an answer, its numbers in their order, and its operators. The sign of a negative number is one."""

    value: Fraction
    numbers: tuple[int, ...]
    operators: frozenset[str]


def read_expression(text: str) -> Expression:
    """Return the expression in a text. Raises BadExpression."""
    reader = _Reader(text)
    value = reader.sum()
    numbers = tuple(reader.numbers)
    if reader.take("="):
        negative = reader.take("+", "-") == "-"
        claimed = -reader.digits() if negative else reader.digits()
        if claimed != value:
            raise BadExpression(f"it comes to {value}, not to {claimed}")
    if reader.peek():
        raise BadExpression(f"{reader.peek()!r} stands where nothing more is wanted")
    return Expression(value, numbers, frozenset(reader.operators))


class _Reader:
    """Reader of tokens, with a method for each line of the grammar."""

    def __init__(self, text: str) -> None:
        text, place = text.translate(_SIGNS).strip(), 0
        self._tokens: list[str] = []
        while place < len(text):
            found = _TOKEN.match(text, place)
            if found is None:
                raise BadExpression(f"{text[place:].lstrip()[:1]!r} is not part of arithmetic")
            place = found.end()
            self._tokens.append(found[1])
            if len(found[1]) > _MOST_DIGITS:
                raise BadExpression(f"a number has more than {_MOST_DIGITS} digits")
        self._place = self._depth = 0
        self.numbers: list[int] = []
        self.operators: set[str] = set()

    def sum(self, signs: str = "+-") -> Fraction:
        """Return the value of a sum, or with the signs `*/` of a product."""
        part = self._signed if signs == "*/" else partial(self.sum, "*/")
        value = part()
        while sign := self.take(*signs):
            self.operators.add(sign)
            other = part()
            if sign == "/" and other == 0:
                raise BadExpression("it divides by zero")
            value = _VALUE[sign](value, other)
        return value

    def _signed(self) -> Fraction:
        sign = self.take("+", "-")
        if sign == "-":
            self.operators.add(sign)  # else 5 + -3 would be a way to subtract without the operator
        if self.take("("):
            self._depth += 1
            if self._depth > _DEEPEST:
                raise BadExpression(f"its brackets are more than {_DEEPEST} deep")
            value = self.sum()
            if not self.take(")"):
                raise BadExpression("a bracket is not closed")
            self._depth -= 1
        else:
            value = Fraction(self.digits())
            if len(self.numbers) == _MOST_NUMBERS:
                raise BadExpression(f"it has more than {_MOST_NUMBERS} numbers")
            self.numbers.append(int(value))
        return -value if sign == "-" else value

    def digits(self) -> int:
        token = self.peek()
        if not token.isdigit():
            raise BadExpression(f"a number is wanted where {repr(token) if token else 'the end'} is")
        self._place += 1
        return int(token)

    def peek(self) -> str:
        return self._tokens[self._place] if self._place < len(self._tokens) else ""

    def take(self, *wanted: str) -> str:
        """Move past the next token and return it if it is one of these; else return an empty text."""
        token = self.peek()
        if token not in wanted:
            return ""
        self._place += 1
        return token
