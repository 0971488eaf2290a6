"""MetaMathQA: questions of mathematics, read from files of that data set's format, and answers that are compared.

An entry of a file has `query`, `response`, `type` and `original_question`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any

from parallel_envs.choices import TextMode, words
from parallel_envs.groups.envs import base as fields
from parallel_envs.groups.envs.base import Step, StepCount, TextEnv, step_info
from parallel_envs.groups.envs.records import (
    FileVersion,
    data_file_error,
    file_version,
    included_file,
    read_entries,
    train_or_val_items,
)
from parallel_envs.seeding import SeedTree


@dataclass(frozen=True, kw_only=True)
class MetaMathQAConfig:
    """Config of a `MetaMathQAEnv`."""

    data_path: str | None = None
    """A file in the format of MetaMathQA (`MetaMathQA-395K.json`): JSON, JSON Lines or Parquet (extra `data`). None: a
    small set of arithmetic that comes with the package."""
    max_instances: int | None = None
    """How many questions of the file are used. None: all."""
    skip_unanswered: bool = False
    """Leave out entries whose response has no answer. They are errors otherwise."""
    val_share: float = 0.1
    """The part of the questions that is for the mode `val` alone. 0: both modes use all."""
    score: float = 1.0
    """Reward for the right answer at the first attempt."""
    decay: float = 0.5
    """Factor of the reward at each further attempt."""
    max_attempts: int | None = 5
    """Answers in an episode. None: no limit."""
    max_answer_chars: int = 10_000
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

    def __post_init__(self) -> None:
        fields.check(
            self,
            data_path=fields.path,
            max_instances=partial(fields.count, none=True),
            skip_unanswered=fields.flag,
            val_share=partial(fields.number, least=0.0, most=1.0),
            score=fields.number,
            decay=partial(fields.number, least=0.0, most=1.0),
            max_attempts=partial(fields.count, none=True),
            max_answer_chars=partial(fields.count, most=1_000_000),
            render_mode=words(TextMode),
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

    def __init__(self, config: MetaMathQAConfig | None = None) -> None:
        self.config = config or MetaMathQAConfig()
        self._training, self._validation = (questions_for(self.config, training=one) for one in (True, False))
        self._count = StepCount(None)

    def reset(self, seed: int, mode: str = "train") -> str:
        questions = self._training if mode == "train" else self._validation
        self.question = questions[int(SeedTree(seed).child("metamathqa").generator().integers(len(questions)))]
        self._success = False
        self._count.start()
        self._shown = self.question.query
        return self._shown

    def step(self, action: Any) -> Step:
        self._count.tick()
        answer = ""
        if isinstance(action, str) and len(action) <= self.config.max_answer_chars:
            found = answer_in(action)  # the whole text without a mark
            answer = action.strip() if found is None else found
        valid = plain(answer) != ""
        self._success = is_same_answer(answer, self.question.answer)
        reward = self.config.score * self.config.decay ** (self._count.steps - 1) if self._success else 0.0
        terminated = self._success or self._count.steps == self.config.max_attempts
        self._count.close(terminated)
        self._shown = "Correct!" if self._success else "Wrong." if terminated else "Wrong. Think again."
        info = step_info(success=self._success, valid=valid, effective=valid)
        return self._shown, reward, terminated, False, info

    def metrics(self) -> Mapping[str, float]:
        """Return the attempts of the episode."""
        return {"attempts": self._count.steps}


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


def questions_for(config: MetaMathQAConfig, *, training: bool) -> tuple[Question, ...]:
    """Return the questions for training, or for validation. A process reads and splits each version of a file once."""
    source = file_version(config.data_path or included_file(_INCLUDED))
    return _split(source, config.max_instances, config.skip_unanswered, config.val_share, training)


@lru_cache(maxsize=16)
def _split(
    source: FileVersion, most: int | None, skip_unanswered: bool, val_share: float, training: bool
) -> tuple[Question, ...]:
    questions = _read(source, most, skip_unanswered)
    return train_or_val_items(questions, lambda question: question.original, val_share, training=training)


@lru_cache(maxsize=8)
def _read(source: FileVersion, most: int | None, skip_unanswered: bool) -> tuple[Question, ...]:
    questions = []
    for entry in read_entries(source.path):
        response = entry.text("response")
        answer = answer_in(response)
        if not answer and skip_unanswered:
            continue
        query = entry.text("query")
        if not answer:
            raise entry.error(f"`response` has no answer behind {MARK!r}. Mend it, or give skip_unanswered=True.")
        kind = entry.text("type") if entry.has("type") else ""
        original = entry.text("original_question") if entry.has("original_question") else query
        questions.append(Question(query, answer, response, kind, original))
        if len(questions) == most:
            break
    if not questions:
        what = "there are no questions. Give a file of entries with `query` and `response`."
        raise data_file_error(source.path, None, what)
    return tuple(questions)


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
