"""A bandit of two arms with names that hint at how they pay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge

from parallel_envs.choices import ArmSplit, TextMode
from parallel_envs.groups.envs.base import Act, Count, EnvConfig, Share, Text, TextEnv, action_number, step_info
from parallel_envs.groups.interface import fold_name
from parallel_envs.seeding import SeedTree

# A steady profession stands for the arm that pays little but surely, a risky one for the other arm.
ARM_NAMES: Mapping[str, tuple[tuple[str, str], ...]] = {
    names: tuple((low, high) for low, _, high in (pair.partition("/") for pair in pairs.split()))
    for names, pairs in {
        "train": """Baker/Prospector Tailor/Inventor Translator/TreasureHunter Gatekeeper/Racer Surveyor/Wildcatter
            Miller/Speculator Conductor/Stuntman Beekeeper/PokerPlayer Plumber/Playwright Ferryman/Privateer""",
        "test": """Notary/Gambler Shepherd/Smuggler Clockmaker/Novelist Proofreader/Auctioneer
            Lamplighter/Mountaineer Cobbler/OilBaron""",
    }.items()
}


@dataclass(frozen=True, kw_only=True)
class BanditConfig(EnvConfig):
    """Config of a `BanditEnv`."""

    split: ArmSplit = "auto"
    """The set of name pairs: `train`, `test`, or `auto`: `train` in the mode train, `test` in others."""
    lo_arm_name: Text | None = None
    """The name of the arm that pays less, with `hi_arm_name`. None: names are random."""
    hi_arm_name: Text | None = None
    """The name of the arm that pays more."""
    lo_arm_score: float = 0.1
    """The reward of the lower arm."""
    hi_arm_loscore: float = 0.0
    """The usual reward of the higher arm."""
    hi_arm_hiscore: float = 1.0
    """The reward of the higher arm when it is lucky."""
    hi_arm_hiscore_prob: Share = 0.25
    """The probability that it is lucky."""
    noise: Annotated[float, Ge(0.0)] = 0.0
    """The standard deviation of normal noise that is added to every reward."""
    num_pulls: Count = 1
    """Pulls in an episode."""
    action_space_start: Annotated[int, Ge(0)] = 1
    """The number of the first arm; that of the second is one more."""
    render_mode: TextMode = "text"
    """There is only `text`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high = self.lo_arm_name, self.hi_arm_name
        if (low is None) != (high is None) or (low and high and fold_name(low) == fold_name(high)):
            raise ValueError(
                f"lo_arm_name={low!r} and hi_arm_name={high!r} are no pair. Give two names; case, and spaces around "
                "them, make no difference."
            )
        chance = self.hi_arm_hiscore_prob
        mean = chance * self.hi_arm_hiscore + (1 - chance) * self.hi_arm_loscore
        if mean <= self.lo_arm_score:
            raise ValueError(
                f"hi_arm_hiscore_prob={chance} makes the higher arm pay {mean:g} in the mean, no more than "
                f"lo_arm_score={self.lo_arm_score}. Let it pay more."
            )


class BanditEnv(TextEnv):
    """Two arms, one of which pays more on average. An episode is `num_pulls` pulls; the last one terminates it.

    The names and their order are random at each reset, so `action_lookup` is the episode's own: read it after `reset`.
    The luck of a pull does not depend on the arm: members of a group, which share a seed, are equally lucky, and differ
    in reward only where they choose differently. (RAGEN gives each member its own noise, by the order in which its envs
    were made; a group then cannot be repeated.)

    `success` is true while the higher arm has been pulled more often than the lower one.
    """

    _seed_name = "bandit"

    def __init__(self, config: BanditConfig | None = None) -> None:
        super().__init__(config or BanditConfig())
        self._name_arms("low", "high")  # until there is an episode

    def _begin(self, seeds: SeedTree, training: bool) -> None:
        config, names = self.config, seeds.child("names").generator()
        self._luck = seeds.child("luck").generator()
        if config.lo_arm_name is not None:
            low, high = config.lo_arm_name, config.hi_arm_name
        else:
            split = config.split if config.split != "auto" else "train" if training else "test"
            pairs = ARM_NAMES[split]
            low, high = pairs[int(names.integers(len(pairs)))]
        self._high, self._num_high = high, 0
        first, second = (low, high) if names.random() < 0.5 else (high, low)
        self._name_arms(first, second)
        pulls = "one of them once" if config.num_pulls == 1 else f"them {config.num_pulls} times in all"
        self._shown = (
            f"There are two arms, {first} and {second}. You pull {pulls}. Each arm pays in its own way, which its name "
            f"hints at; one pays more on average. Which do you pull, {first} or {second}?"
        )

    def _name_arms(self, first: str, second: str) -> None:
        start = self.config.action_space_start
        self.action_lookup = self._arms = {start: first, start + 1: second}

    def _act(self, action: Any) -> Act:
        config, reward = self.config, 0.0
        lucky, noise = self._luck.random() < config.hi_arm_hiscore_prob, self._luck.standard_normal()
        place = action_number(action)
        arm = None if place is None else self._arms.get(place)
        if arm is not None:
            high_reward = config.hi_arm_hiscore if lucky else config.hi_arm_loscore
            reward = (high_reward if arm == self._high else config.lo_arm_score) + config.noise * float(noise)
        self._num_high += 0 if arm is None else 1 if arm == self._high else -1
        self._shown = "No arm was pulled." if arm is None else f"{arm} pays {reward:g}."
        info = step_info(self._num_high > 0, arm is not None, arm is not None)
        info["best_arm"] = arm == self._high
        return reward, self._steps >= config.num_pulls, info

    def metrics(self) -> Mapping[str, float]:
        """Return how much more often the higher arm was pulled, per step: from -1 to 1."""
        return {"best_arm_lead": self._num_high / max(self._steps, 1)}
