"""Puzzles that can be solved: numbers are drawn and combined by lot until what they come to may be a target."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from parallel_envs.groups.envs.countdown.arithmetic import BadExpression, Expression
from parallel_envs.groups.envs.countdown.config import CountdownConfig
from parallel_envs.groups.envs.editions import Edition, edition
from parallel_envs.groups.envs.faults import fault
from parallel_envs.groups.envs.halves import half
from parallel_envs.groups.envs.records import Entry, read_entries

_TRIES = 20_000

_RESULT: dict[str, Callable[[int, int], int | None]] = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right if left >= right else None,
    "*": lambda left, right: left * right,
    "/": lambda left, right: left // right if right and left % right == 0 else None,
}


@dataclass(frozen=True, slots=True)
class Puzzle:
    """Numbers, and what they are to come to."""

    numbers: tuple[int, ...]
    target: int
    solution: str | None = None
    """An answer that is right, of puzzles that are made here."""

    @property
    def key(self) -> str:
        return f"{self.target} from {sorted(self.numbers)}"


def make_puzzle(config: CountdownConfig, generator: np.random.Generator) -> Puzzle:
    """A puzzle that can be solved without negative numbers and fractions on the way."""
    low, high = config.number_range
    for _ in range(_TRIES):
        how_many = int(generator.integers(config.num_numbers[0], config.num_numbers[1] + 1))
        numbers = tuple(generator.integers(low, high + 1, how_many).tolist())
        used = how_many if config.use == "exactly_once" else int(generator.integers(1, how_many + 1))
        made = _combined([(number, str(number)) for number in numbers[:used]], config.operators, generator)
        if made is not None and config.target_range[0] <= made[0] <= config.target_range[1]:
            shuffled = tuple(generator.permutation(numbers).tolist())
            return Puzzle(shuffled, made[0], made[1])
    raise ValueError(
        f"No puzzle with num_numbers={config.num_numbers}, number_range={config.number_range}, "
        f"target_range={config.target_range} and operators={config.operators!r} was found in {_TRIES} tries. "
        "Widen one of the ranges."
    )


def _combined(parts: list[tuple[int, str]], operators: str, generator: np.random.Generator) -> tuple[int, str] | None:
    """Two parts by lot become one, until one is left; None where they do not go together."""
    while len(parts) > 1:
        first, second = generator.choice(len(parts), 2, replace=False).tolist()
        (left, left_words), (right, right_words) = parts[first], parts[second]
        sign = operators[int(generator.integers(len(operators)))]
        result = _RESULT[sign](left, right)
        if result is None:
            return None
        rest = [part for index, part in enumerate(parts) if index not in (first, second)]
        parts = [*rest, (result, f"({left_words} {sign} {right_words})")]
    value, words = parts[0]
    return value, words[1:-1] if words.startswith("(") else words


# ---- judging --------------------------------------------------------------------------------------


def check_use(expression: Expression, puzzle: Puzzle, config: CountdownConfig) -> None:
    """Raises BadExpression if the numbers or the signs are not those of the puzzle."""
    used, given = Counter(expression.numbers), Counter(puzzle.numbers)
    if extra := used - given:
        raise BadExpression(f"it uses {min(extra)} more often than it is there")
    if config.use == "exactly_once" and (left := given - used):
        raise BadExpression(f"it leaves out {min(left)}")
    if foreign := expression.operators - set(config.operators):
        raise BadExpression(f"it uses {min(foreign)!r}, where {' '.join(config.operators)} are allowed")


# ---- files ----------------------------------------------------------------------------------------


def puzzles_for(config: CountdownConfig, *, training: bool) -> tuple[Puzzle, ...]:
    """The puzzles of the file to train on, or to validate on; none if there is no file.

    Each edition of a file is read, and split, once in a process.
    """
    if config.data_path is None:
        return ()
    return _half(edition(config.data_path), config.max_instances, config.val_share, training)


@lru_cache(maxsize=16)
def _half(source: Edition, most: int | None, val_share: float, training: bool) -> tuple[Puzzle, ...]:
    return half(_read(source, most), lambda puzzle: puzzle.key, val_share, training=training)


@lru_cache(maxsize=8)
def _read(source: Edition, most: int | None) -> tuple[Puzzle, ...]:
    puzzles = tuple(_puzzle(entry) for entry in read_entries(source.path, most, ("target", "nums")))
    if not puzzles:
        raise fault(source.path, None, "there are no puzzles. Give a file of entries with `target` and `nums`.")
    return puzzles


def _puzzle(entry: Entry) -> Puzzle:
    target, numbers = entry.field("target"), entry.field("nums")
    if not _is_number(target):
        raise entry.fault(f"`target` is {target!r}, where a whole number from 0 up is wanted.")
    if not isinstance(numbers, list) or not numbers or not all(map(_is_number, numbers)):
        raise entry.fault(f"`nums` is {numbers!r}, where a list of whole numbers from 0 up is wanted.")
    return Puzzle(tuple(numbers), target)


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**12
