"""Question and answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parallel_envs.groups.envs.facts import Step, StepCount, facts
from parallel_envs.groups.envs.metamathqa.answers import given_answer, plain, same
from parallel_envs.groups.envs.metamathqa.config import MetaMathQAConfig
from parallel_envs.groups.envs.metamathqa.questions import Question, questions_for
from parallel_envs.groups.envs.tiles import text_only
from parallel_envs.seeding import SeedTree


class MetaMathQAEnv:
    """Answer a question; a wrong answer may be followed by another.

    Actions are texts: the answer, or anything that ends with "The answer is: ...". The right one pays 1 at the first
    attempt and half as much at each further one (`score`, `decay`), and terminates the episode, as does the last
    attempt. Answers are compared without regard to case, space and LaTeX's wrapping, and numbers by value: 1,250 is
    1250.0. An empty one is no answer (`action_is_valid` False), and is an attempt all the same.

    Questions are read when the env is made. Variations of one question are all in `train` or all in `val`.
    `question.answer` is the right answer, for oracles.
    """

    uses_global_random = False
    action_lookup: Mapping[Any, str] | None = None
    question: Question

    def __init__(self, config: MetaMathQAConfig | None = None) -> None:
        self.config = config or MetaMathQAConfig()
        self._training, self._validation = (questions_for(self.config, training=one) for one in (True, False))
        self._count = StepCount(None)
        self._shown = ""

    def reset(self, seed: int, mode: str = "train") -> str:
        questions = self._training if mode == "train" else self._validation
        self.question = questions[int(SeedTree(seed).child("metamathqa").generator().integers(len(questions)))]
        self._success = False
        self._count.start()
        self._shown = self.question.query
        return self._shown

    def step(self, action: Any) -> Step:
        self._count.tick()
        answer = self._read(action)
        valid = plain(answer) != ""
        self._success = same(answer, self.question.answer)
        reward = self.config.score * self.config.decay ** (self._count.steps - 1) if self._success else 0.0
        terminated = self._success or self._count.steps == self.config.max_attempts
        self._count.close(terminated)
        self._shown = "Correct!" if self._success else "Wrong." if terminated else "Wrong. Think again."
        info = facts(success=self._success, valid=valid, effective=valid)
        return self._shown, reward, terminated, False, info

    def _read(self, action: Any) -> str:
        if not isinstance(action, str) or len(action) > self.config.max_answer_chars:
            return ""
        return given_answer(action)

    def render(self, mode: str | None = None) -> str:
        """What was said last."""
        text_only(mode)
        return self._shown

    def metrics(self) -> Mapping[str, float]:
        """The attempts of the episode."""
        return {"attempts": self._count.steps}

    def close(self) -> None:
        """Nothing is held."""
