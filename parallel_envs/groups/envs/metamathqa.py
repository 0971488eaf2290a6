"""MetaMathQA: questions of mathematics, read from files of that data set's format, and answers that are compared.

An entry of a file has `query`, `response`, `type` and `original_question`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from operator import attrgetter
from typing import Annotated, Any

from annotated_types import Interval

from parallel_envs.choices import TextMode
from parallel_envs.groups.envs.base import Act, Count, EnvConfig, Share, Text, TextEnv, step_info
from parallel_envs.groups.envs.records import included_file, read_entries, split_file
from parallel_envs.seeding import SeedTree


@dataclass(frozen=True, kw_only=True)
class MetaMathQAConfig(EnvConfig):
    """Config of a `MetaMathQAEnv`."""

    data_path: Text | None = None
    """A file in the format of MetaMathQA (`MetaMathQA-395K.json`): JSON, JSON Lines (`.jsonl`) or Parquet (extra
    `data`). None: a small set of arithmetic that comes with the package."""
    max_instances: Count | None = None
    """How many questions of the file are used. None: all."""
    skip_unanswered: bool = False
    """Leave out entries whose response has no answer. They are errors otherwise."""
    val_share: Share = 0.1
    """The part of the questions that is for the mode `val` alone. 0: both modes use all."""
    score: float = 1.0
    """Reward for the right answer at the first attempt."""
    decay: Share = 0.5
    """Factor of the reward at each further attempt."""
    max_attempts: Count | None = 5
    """Answers in an episode. None: no limit."""
    max_answer_chars: Annotated[int, Interval(ge=1, le=1_000_000)] = 10_000
    """An answer that is longer is not read."""
    render_mode: TextMode = "text"
    """There is only `text`."""

    @property
    def sample_data(self) -> str | None:
        """Return the warning for an env that plays the included sample, or None if the user gave data files."""
        if self.data_path is not None:
            return None
        return (
            "180 questions of simple arithmetic that come with the package for trying things out. For the full data "
            "give `env_config: {data_path: .../MetaMathQA-395K.json}`."
        )


class MetaMathQAEnv(TextEnv):
    """Answer a question; a wrong answer may be followed by another.

    Actions are texts: the answer, or anything that ends with "The answer is: ...". The right one pays 1 at the first
    attempt and half as much at each further one (`score`, `decay`), and terminates the episode, as does the last
    attempt. Answers are compared without regard to case, space and LaTeX's wrapping, and numbers by value: 1,250 is
    1250.0. An empty text is no answer (`action_is_valid` False), but counts as an attempt.

    Questions are read when the env is made. Variations of one question are all in `train` or all in `val`.
    `question.answer` is the right answer, for oracles.
    """

    question: Question
    _seed_name = "metamathqa"

    def __init__(self, config: MetaMathQAConfig | None = None) -> None:
        super().__init__(config or MetaMathQAConfig())
        one, path = self.config, self.config.data_path or included_file(_INCLUDED)
        options = (one.max_instances, one.skip_unanswered)
        self._questions = split_file(path, read_questions, _original_of, one.val_share, *options)

    def _begin(self, seeds: SeedTree, training: bool) -> None:
        questions = self._questions[0 if training else 1]
        self.question = questions[int(seeds.generator().integers(len(questions)))]
        self._shown = self.question.query

    def _act(self, action: Any) -> Act:
        answer = ""
        if isinstance(action, str) and len(action) <= self.config.max_answer_chars:
            found = answer_in(action)  # the whole text without a mark
            answer = action.strip() if found is None else found
        valid, success = plain(answer) != "", is_same_answer(answer, self.question.answer)
        reward = self.config.score * self.config.decay ** (self._steps - 1) if success else 0.0
        terminated = success or self._steps == self.config.max_attempts
        self._shown = "Correct!" if success else "Wrong." if terminated else "Wrong. Think again."
        return reward, terminated, step_info(success, valid, valid)

    def metrics(self) -> Mapping[str, float]:
        """Return the attempts of the episode."""
        return {"attempts": self._steps}


# ---- questions ------------------------------------------------------------------------------------------------------

_INCLUDED = "arithmetic.jsonl"


@dataclass(frozen=True, slots=True)
class Question:
    """A question and its answer."""

    query: str
    answer: str
    response: str
    """The data set's way to the answer."""
    kind: str
    original: str
    """The question that this one is a variation of; the data set has many variations of each."""


_original_of = attrgetter("original")


def read_questions(path: str, most: int | None, skip_unanswered: bool) -> Iterator[Question]:
    """Yield the first questions of a file."""
    num_questions = 0
    for entry in read_entries(path):
        response = entry.text("response")
        answer = answer_in(response)
        if not answer and skip_unanswered:
            continue
        query = entry.text("query")
        if not answer:
            raise entry.error(f"`response` has no answer behind {MARK!r}. Mend it, or give skip_unanswered=True.")
        original = entry.text_or_empty("original_question") or query
        yield Question(query, answer, response, entry.text_or_empty("type"), original)
        num_questions += 1
        if num_questions == most:
            return


# ---- answers: texts are compared, and numbers by value; nothing is run ----------------------------------------------

MARK = "The answer is:"
"""Words before the answer, in the data and often in the text of a model."""

_MARK = re.compile(re.escape(MARK), re.IGNORECASE)
_NUMBER = re.compile(r"([-+]?)([0-9]{1,40})(?:\.([0-9]{1,40}))?(?:/([0-9]{1,40}))?(%?)")
_THOUSANDS = re.compile(r"[-+]?[0-9]{1,3}(?:,[0-9]{3}){1,12}(?:\.[0-9]{1,40})?%?")
_FRACTION = re.compile(r"\\[dt]?frac\{([^{}]{1,40})\}\{([^{}]{1,40})\}")
_BOXED = re.compile(r"\\(?:boxed|text|mathrm|textbf)\{([^{}]*)\}")
_DROPPED = re.compile(r"\\left|\\right|\\[,;!: ]|\\\$|[$\s]")


def answer_in(text: str) -> str | None:
    """Return the text after the last mark; None without a mark."""
    *_, behind = _MARK.split(text)
    return None if behind == text else behind.strip()


def is_same_answer(answer: str, wanted: str) -> bool:
    """Return whether two answers differ only in how they are written."""
    answer, wanted = plain(answer), plain(wanted)
    if answer == wanted:
        return answer != ""
    value = number(answer)
    return value is not None and value == number(wanted)


def plain(text: str) -> str:
    """Return an answer without typesetting: case, space, dollar signs, a full stop, LaTeX's wrapping."""
    text = _BOXED.sub(r"\1", _FRACTION.sub(r"\1/\2", text.replace("{,}", ",")))
    return _DROPPED.sub("", text).lower().rstrip(".")


def number(text: str) -> Fraction | None:
    """Return the value of a plain number such as 1,250 or -3.50 or 1/2 or 50%; None for anything else."""
    if _THOUSANDS.fullmatch(text):
        text = text.replace(",", "")
    found = _NUMBER.fullmatch(text)
    if found is None:
        return None
    sign, whole, decimals, below, percent = found.groups()
    if below is not None and int(below) == 0:
        return None
    value = Fraction(f"{whole}.{decimals}" if decimals else whole) / int(below or 1)
    return (-value if sign == "-" else value) / (100 if percent else 1)
