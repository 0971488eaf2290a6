"""What can be asked of a `WebShopEnv`."""

from __future__ import annotations

from dataclasses import dataclass

from parallel_envs.choices import PageText, ShopReward, TextMode, words
from parallel_envs.groups.envs.fields import choice, count, count_or_none, flag, number, path_or_none


@dataclass(frozen=True, kw_only=True)
class WebShopConfig:
    """Which shop, how it is shown, and what is paid."""

    dataset: str | None = None
    """As in RAGEN's files: `small` is what `file_path` says, or the shipped catalogue; with `full` a
    `file_path` is missed when the env is made."""
    file_path: str | None = None
    """Products: WebShop's `items_shuffle.json` or the like. None: a small made catalogue that is shipped."""
    attributes_path: str | None = None
    """Their attributes, and made instructions: `items_ins_v2.json`. Only with `file_path`."""
    instructions_path: str | None = None
    """Instructions by people: `items_human_ins.json`. Only with `file_path`."""
    cache_dir: str | None = None
    """Where shops with large files are kept on disk, so that all processes share one copy. None: `parallel_envs` in the
    user's cache (`~/.cache`). The full WebShop takes about as much there as its files do."""
    human_goals: bool = True
    """Whose instructions: those by people, or the made ones of the attributes' file, for which options are drawn."""
    num_products: int | None = None
    """How many products of the file are used. None: all."""
    limit_goals: int | None = None
    """How many instructions are used. None: all."""
    val_share: float = 0.1
    """The part of the wanted products that is for the mode `val` alone. 0: both modes use all."""
    reward: ShopReward = "dense"
    """`dense`: how well the purchase meets what was wanted, from 0 to 1. `sparse`: 1 if it does in all, else 0."""
    observation_mode: PageText = "text"
    """`text`: the words of the page, between `[SEP]`. `text_rich`: with a mark on whatever can be clicked."""
    show_actions: bool = True
    """The state ends with the actions that can be done."""
    show_attrs: bool = False
    """Products have a page with their attributes."""
    page_size: int = 10
    """Products to a page of results."""
    num_results: int = 50
    """The most products that a search finds."""
    max_steps: int | None = None
    """Steps after which an episode is truncated. None: never."""
    render_mode: TextMode = "text"
    """There is only `text`."""

    @property
    def sample_data(self) -> str | None:
        """Return the warning for an env that plays the shipped sample, or None if the user gave data files."""
        if self.file_path is not None or self.dataset == "full":
            return None
        return (
            "60 made products that come with the package for trying things out. For the full data give `env_config: "
            "{file_path: .../items_shuffle.json, attributes_path: .../items_ins_v2.json, instructions_path: "
            ".../items_human_ins.json}`."
        )

    def __post_init__(self) -> None:
        for name in ("file_path", "attributes_path", "instructions_path", "cache_dir"):
            object.__setattr__(self, name, path_or_none(name, getattr(self, name)))
        for name in ("human_goals", "show_actions", "show_attrs"):
            flag(name, getattr(self, name))
        for name in ("num_products", "limit_goals", "max_steps"):
            count_or_none(name, getattr(self, name))
        number("val_share", self.val_share, least=0.0, most=1.0)
        choice("reward", self.reward, words(ShopReward))
        choice("observation_mode", self.observation_mode, words(PageText))
        count("page_size", self.page_size)
        count("num_results", self.num_results)
        choice("render_mode", self.render_mode, words(TextMode))
        self._check_files_go_together()
        if self.dataset is not None:
            choice("dataset", self.dataset, ("small", "full"))

    def _check_files_go_together(self) -> None:
        beside = {"attributes_path": self.attributes_path, "instructions_path": self.instructions_path}
        if self.file_path is None:
            for name, path in beside.items():
                if path is not None:
                    raise ValueError(f"{name}={path!r} was given without products. Give file_path as well.")
            return
        needed = "instructions_path" if self.human_goals else "attributes_path"
        if beside[needed] is None:
            raise ValueError(
                f"file_path={self.file_path!r} was given without {needed}, so nothing is wanted of the products. Give "
                f"{needed}, or the other kind of instructions with human_goals={not self.human_goals}."
            )
