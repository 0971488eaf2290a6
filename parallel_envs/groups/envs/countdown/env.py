"""The game."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parallel_envs.groups.envs.countdown.arithmetic import BadExpression, Expression, read_expression
from parallel_envs.groups.envs.countdown.config import CountdownConfig
from parallel_envs.groups.envs.countdown.puzzles import Puzzle, check_use, make_puzzle, puzzles_for
from parallel_envs.groups.envs.facts import Step, StepCount, facts
from parallel_envs.groups.envs.tiles import text_only
from parallel_envs.seeding import SeedTree


class CountdownEnv:
    """Combine the numbers into the target, by + - * / and brackets.

    Actions are texts such as `(25 - 1) * 4`; `= 96` may follow. They are read by a grammar of arithmetic, exactly and
    never run. An answer that is no arithmetic, or that does not use the numbers as it must, is worth nothing
    (`action_is_valid` False); one that does and comes to something else is worth `format_score`; the target is worth
    `score`, and terminates the episode, as does the last attempt.

    Puzzles are made so that they can be solved: `puzzle.solution` holds how, for oracles; no state tells it. Those of a
    file are read when the env is made and taken as they are; their solution is None.
    """

    uses_global_random = False
    action_lookup: Mapping[Any, str] | None = None
    puzzle: Puzzle

    def __init__(self, config: CountdownConfig | None = None) -> None:
        self.config = config or CountdownConfig()
        self._of_file = {training: puzzles_for(self.config, training=training) for training in (True, False)}
        self._count = StepCount(None)
        self._shown = ""

    def reset(self, seed: int, mode: str = "train") -> str:
        self.puzzle = self._drawn(seed, mode)
        self._best = 0.0
        self._count.start()
        self._shown = self._question()
        return self._shown

    def _question(self) -> str:
        return f"Target: {self.puzzle.target}, numbers: {', '.join(map(str, self.puzzle.numbers))}"

    def _drawn(self, seed: int, mode: str) -> Puzzle:
        generator = SeedTree(seed).child("countdown").generator()
        puzzles = self._of_file[mode == "train"]
        return puzzles[int(generator.integers(len(puzzles)))] if puzzles else make_puzzle(self.config, generator)

    def step(self, action: Any) -> Step:
        self._count.tick()
        try:
            value = self._read(action).value
        except BadExpression as reason:
            return self._outcome(f"That is no answer: {reason}.", 0.0, valid=False)
        if value == self.puzzle.target:
            return self._outcome("Correct!", self.config.score, valid=True, success=True)
        return self._outcome(f"That comes to {value}.", self.config.format_score, valid=True)

    def _read(self, action: Any) -> Expression:
        if not isinstance(action, str):
            raise BadExpression("it is not a text")
        if len(action) > self.config.max_answer_chars:
            raise BadExpression(f"it has more than {self.config.max_answer_chars} characters")
        expression = read_expression(action)
        check_use(expression, self.puzzle, self.config)
        return expression

    def _outcome(self, words: str, reward: float, *, valid: bool, success: bool = False) -> Step:
        terminated = success or self._count.steps >= self.config.max_attempts
        self._count.close(terminated)
        self._best = max(self._best, reward)
        self._shown = words if terminated else f"{words} {self._question()}"
        return self._shown, reward, terminated, False, facts(success=success, valid=valid, effective=valid)

    def render(self, mode: str | None = None) -> str:
        """What was said last."""
        text_only(mode)
        return self._shown

    def metrics(self) -> Mapping[str, float]:
        """The best reward of the episode."""
        return {"best_score": self._best}

    def close(self) -> None:
        """Nothing is held."""
