"""What can be asked of a `MetaMathQAEnv`."""

from __future__ import annotations

from dataclasses import dataclass

from parallel_envs.choices import TextMode, words
from parallel_envs.groups.envs.fields import choice, count, count_or_none, flag, number, path_or_none


@dataclass(frozen=True, kw_only=True)
class MetaMathQAConfig:
    """Where questions come from, and what is paid for an answer."""

    data_path: str | None = None
    """A file in the format of MetaMathQA (`MetaMathQA-395K.json`): JSON, JSON Lines or Parquet (extra `data`). None: a
    small set of arithmetic that is shipped."""
    max_instances: int | None = None
    """How many questions of the file are used. None: all."""
    skip_unanswered: bool = False
    """Leave out entries whose response has no answer. They are errors otherwise."""
    val_share: float = 0.1
    """The part of the questions that is for the mode `val` alone. 0: both modes use all."""
    score: float = 1.0
    """Paid for the right answer at the first attempt."""
    decay: float = 0.5
    """What is left of the score at each further attempt."""
    max_attempts: int | None = 5
    """Answers to an episode. None: as many as are wanted."""
    max_answer_chars: int = 10_000
    """An answer that is longer is not read."""
    render_mode: TextMode = "text"
    """There is only `text`."""

    @property
    def sample_data(self) -> str | None:
        """Return the warning for an env that plays the shipped sample, or None if the user gave data files."""
        if self.data_path is not None:
            return None
        return (
            "180 questions of simple arithmetic that come with the package for trying things out. For the full data "
            "give `env_config: {data_path: .../MetaMathQA-395K.json}`."
        )

    def __post_init__(self) -> None:
        object.__setattr__(self, "data_path", path_or_none("data_path", self.data_path))
        count_or_none("max_instances", self.max_instances)
        flag("skip_unanswered", self.skip_unanswered)
        number("val_share", self.val_share, least=0.0, most=1.0)
        number("score", self.score)
        number("decay", self.decay, least=0.0, most=1.0)
        count_or_none("max_attempts", self.max_attempts)
        count("max_answer_chars", self.max_answer_chars, most=1_000_000)
        choice("render_mode", self.render_mode, words(TextMode))
