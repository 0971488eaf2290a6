"""Questions, read from files in the format of MetaMathQA: `query`, `response`, `type`, `original_question`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

from parallel_envs.groups.envs.editions import Edition, edition, shipped
from parallel_envs.groups.envs.faults import fault
from parallel_envs.groups.envs.halves import half
from parallel_envs.groups.envs.metamathqa.answers import MARK, answer_in
from parallel_envs.groups.envs.metamathqa.config import MetaMathQAConfig
from parallel_envs.groups.envs.records import Entry, read_entries

SHIPPED = "arithmetic.jsonl"


@dataclass(frozen=True, slots=True)
class Question:
    """A question and its answer."""

    query: str
    answer: str
    response: str
    """How the data set comes to the answer."""
    kind: str
    original: str
    """The question that this one is a variation of; the data set has many variations of each."""


def questions_for(config: MetaMathQAConfig, *, training: bool) -> tuple[Question, ...]:
    """The questions to train on, or to validate on. Each edition of a file is read, and split, once in a process."""
    source = edition(config.data_path or shipped(SHIPPED))
    return _half(source, config.max_instances, config.skip_unanswered, config.val_share, training)


@lru_cache(maxsize=16)
def _half(
    source: Edition, most: int | None, skip_unanswered: bool, val_share: float, training: bool
) -> tuple[Question, ...]:
    questions = _read(source, most, skip_unanswered)
    return half(questions, lambda question: question.original, val_share, training=training)


@lru_cache(maxsize=8)
def _read(source: Edition, most: int | None, skip_unanswered: bool) -> tuple[Question, ...]:
    entries = read_entries(source.path)
    answered = (entry for entry in entries if not skip_unanswered or answer_in(entry.text("response")))
    questions = tuple(_question(entry) for entry in islice(answered, most))
    if not questions:
        raise fault(source.path, None, "there are no questions. Give a file of entries with `query` and `response`.")
    return questions


def _question(entry: Entry) -> Question:
    query, response = entry.text("query"), entry.text("response")
    answer = answer_in(response)
    if not answer:
        raise entry.fault(f"`response` has no answer behind {MARK!r}. Mend it, or give skip_unanswered=True.")
    kind = entry.text("type") if entry.has("type") else ""
    original = entry.text("original_question") if entry.has("original_question") else query
    return Question(query, answer, response, kind, original)
