"""What a configuration is made of, block by block. `settings` shows the whole, and reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from parallel_envs.choices import GroupFailure, GroupMode, StartMethod, Where, words
from parallel_envs.groups.failures import BadSettings
from parallel_envs.groups.scalars import Count, CountFromZero, Flag, Number, Seconds


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class EnvConfigs(_Strict):
    """Which environments: the groups of each tag, in this order."""

    tags: list[str]
    n_groups: list[Count] | None = None
    """The groups of each tag. None: the `env_groups` are split evenly."""


class ModeBlock(_Strict):
    """The groups of a mode. The numbers of `n_groups` add up to `env_groups`."""

    env_groups: Count
    group_size: Count
    """Environments in a group. They begin alike: with the same seed."""
    env_configs: EnvConfigs

    @property
    def groups_of_tags(self) -> list[int]:
        """Return the number of groups of each tag. Without `n_groups` it is an even split, rounded down."""
        named = self.env_configs
        return [self.env_groups // len(named.tags)] * len(named.tags) if named.n_groups is None else named.n_groups


class ManagerBlock(_Strict):
    """The block `es_manager`."""

    use_multiprocessing: Flag = True
    """Environments live in worker processes. False: in the caller."""
    max_workers: Count | None = None
    """At most so many worker processes. None: as many as there are cores, but at most 8."""
    sequential_env_types: list[str] = []
    """Types of environments that live in the caller in any case."""
    format_penalty: Number = -0.1
    """Added to an entry's penalty by each turn that had no action, or one without a meaning. Punishing is negative."""
    step_timeout: Seconds | None = 300.0
    """Seconds that an environment in a worker may take for the actions of a turn. None: any."""
    reset_timeout: Seconds | None = 600.0
    """Seconds that it may take to begin an episode."""
    start_timeout: Seconds | None = 600.0
    """Seconds that it may take to be made: to load its data, for instance."""
    context: StartMethod | None = None
    """How worker processes are started. None: as is quickest and safe."""
    on_failure: GroupFailure = "entry"
    """What a broken environment is: an entry with a `failure`, or an exception when all others have been dealt with."""
    train: ModeBlock | None = None
    val: ModeBlock | None = None


class TagBlock(_Strict):
    """A block of `custom_envs`: a kind of environment, and how it is used."""

    env_type: str
    max_actions_per_traj: Count = 10
    """Actions in an episode: who has used them up is truncated."""
    env_instruction: str = ""
    """What a prompt should say first. Passed on in `EnvStateManager.envs`."""
    max_tokens: Count | None = None
    """How long an answer may be. Passed on likewise."""
    env_config: dict[str, Any] | None = None
    """What the environment is made with."""
    where: Where = "auto"
    """`process`; `caller`; `both`, if no other environments need processes: the caller is one of the `max_workers`, and
    steps its share while it would wait for the others (without deadlines: nobody can interrupt it); or `auto`: what is
    best for its type, a process if nothing is known of it."""
    parallel_friendly: Flag = False
    """Its environments spend their time waiting (for a server, a disk) and may be stepped at once by threads, within
    their worker processes."""
    max_workers: Count | None = None
    """With `parallel_friendly`, at most so many threads in a worker. None: one for each environment."""


class SeedBlock(_Strict):
    """Where seeds begin, by mode."""

    train: CountFromZero | None = None
    val: CountFromZero | None = None


SEED_FORMS = ("one seed", "seeds by mode")
"""What the mistakes of the one and of the other are filed under."""

Seed = Annotated[
    Annotated[CountFromZero, Tag(SEED_FORMS[0])] | Annotated[SeedBlock, Tag(SEED_FORMS[1])],
    Discriminator(lambda said: SEED_FORMS[isinstance(said, Mapping | SeedBlock)]),
]


class GroupsSettings(_Strict):
    """The whole of it."""

    es_manager: ManagerBlock
    custom_envs: dict[str, TagBlock]
    seed: Seed = Field(default_factory=SeedBlock)
    """train: without it, runs differ. val: without it, 123."""

    def block(self, mode: str) -> ModeBlock:
        """The groups of a mode."""
        if mode not in words(GroupMode):
            raise BadSettings(f"mode={mode!r} is unknown. Say 'train' or 'val'.")
        block: ModeBlock | None = getattr(self.es_manager, mode)
        if block is None:
            raise BadSettings(
                f"`es_manager.{mode}` is missing, and mode={mode!r} was asked for. Say which groups it has."
            )
        return block

    def root_seed(self, mode: str) -> int | None:
        """Where a mode's seeds begin. None: nothing was said."""
        said: int | None = self.seed if isinstance(self.seed, int) else getattr(self.seed, mode)
        return 123 if said is None and mode == "val" else said
