"""The shop as an environment, and its config."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from parallel_envs.choices import PageText, ShopReward, TextMode, words
from parallel_envs.groups.envs.base import (
    Step,
    StepCount,
    TextEnv,
    choice,
    count,
    count_or_none,
    flag,
    number,
    path_or_none,
    step_info,
)
from parallel_envs.groups.envs.webshop.pages import (
    Bought,
    Page,
    ResultsPage,
    Searching,
    View,
    actions_on,
    as_rich_text,
    as_text,
    clicked,
    page_of,
)
from parallel_envs.groups.envs.webshop.products import Goal, goal_of
from parallel_envs.groups.envs.webshop.reward import Score, score
from parallel_envs.groups.envs.webshop.shop import shop_for, wishes_for
from parallel_envs.seeding import SeedTree

_ACTION = re.compile(r"\s*(search|click)\s*\[(.*)\]\s*", re.IGNORECASE | re.DOTALL)
_MOST_CHARS = 1000


@dataclass(frozen=True, kw_only=True)
class WebShopConfig:
    """Config of a `WebShopEnv`."""

    dataset: str | None = None
    """As in RAGEN's files: `small` is what `file_path` says, or the included catalogue; `full` without `file_path` is
    an error when the env is made."""
    file_path: str | None = None
    """Products: WebShop's `items_shuffle.json` or the like. None: a small catalogue that comes with the package."""
    attributes_path: str | None = None
    """Their attributes, and made instructions: `items_ins_v2.json`. Only with `file_path`."""
    instructions_path: str | None = None
    """Instructions by people: `items_human_ins.json`. Only with `file_path`."""
    cache_dir: str | None = None
    """Folder of shops with large files, of which all processes share one copy. None: `parallel_envs` in the user's
    cache (`~/.cache`). The full WebShop takes about as much there as its files do."""
    human_goals: bool = True
    """Use the instructions by people. False: the made ones of the attributes' file, with random options."""
    num_products: int | None = None
    """How many products of the file are used. None: all."""
    limit_goals: int | None = None
    """How many instructions are used. None: all."""
    val_share: float = 0.1
    """The part of the wanted products that is for the mode `val` alone. 0: both modes use all."""
    reward: ShopReward = "dense"
    """`dense`: how well the purchase meets the wish, from 0 to 1. `sparse`: 1 if it meets it completely, else 0."""
    observation_mode: PageText = "text"
    """`text`: the words of the page, between `[SEP]`. `text_rich`: with marks around all buttons."""
    show_actions: bool = True
    """The state ends with the possible actions."""
    show_attrs: bool = False
    """Products have a page with their attributes."""
    page_size: int = 10
    """Products on a page of results."""
    num_results: int = 50
    """The most products that a search finds."""
    max_steps: int | None = None
    """Steps after which an episode is truncated. None: never."""
    render_mode: TextMode = "text"
    """There is only `text`."""

    @property
    def sample_data(self) -> str | None:
        """Return the warning for an env that plays the included sample, or None if the user gave data files."""
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
        beside = {"attributes_path": self.attributes_path, "instructions_path": self.instructions_path}
        needed = "instructions_path" if self.human_goals else "attributes_path"
        if self.file_path is None:
            for name, path in beside.items():
                if path is not None:
                    raise ValueError(f"{name}={path!r} was given without products. Give file_path as well.")
        elif beside[needed] is None:
            raise ValueError(
                f"file_path={self.file_path!r} was given without {needed}, so nothing is wanted of the products. Give "
                f"{needed}, or the other kind of instructions with human_goals={not self.human_goals}."
            )
        if self.dataset is not None:
            choice("dataset", self.dataset, ("small", "full"))


class WebShopEnv(TextEnv):
    """Find a product in a shop, choose its options, and buy it.

    Actions are texts: `search[words]` on the page with a search bar, and `click[...]` with a button of the page:
    `click[back to search]`, `click[next >]`, `click[< prev]`, an asin, an option, `click[description]`,
    `click[features]`, `click[reviews]`, `click[buy now]`. Upper and lower case are the same. Any other text leaves the
    page as it is (`action_is_valid` False). `available_actions()` returns all of them, and each state ends with them
    (`show_actions`).

    Buying pays how well the purchase meets the wish and terminates the episode: attributes, options, price and the kind
    of product, as WebShop counts them (see `reward`). `success` is a purchase that meets the wish completely. With
    `reward="sparse"`, as in RAGEN, only that pays. The search is BM25 over the products' texts. There are no buttons
    that lead to empty pages; options are forgotten when another product is opened. Files are read when the env is made.

    `goal` is the wish, for oracles; states contain its instruction only.
    """

    goal: Goal

    def __init__(self, config: WebShopConfig | None = None) -> None:
        self.config = config or WebShopConfig()
        self._shop = shop_for(self.config)
        self._training, self._validation = (wishes_for(self.config, training=one) for one in (True, False))
        self._count = StepCount(self.config.max_steps)
        self._view: View = Searching()
        self._score: Score | None = None

    def reset(self, seed: int, mode: str = "train") -> str:
        generator = SeedTree(seed).child("webshop").generator()
        wishes = self._training if mode == "train" else self._validation
        self.goal = goal_of(wishes[int(generator.integers(len(wishes)))], generator)
        self._view, self._score = Searching(), None
        self._count.start()
        self._shown = self._state()
        return self._shown

    def step(self, action: Any) -> Step:
        self._count.tick()
        before, after = self._view, self._view_after(action)
        if after is not None:
            self._view = after
        if isinstance(self._view, Bought):
            item = self._view.item
            self._score = score(item.product, item.chosen, self.goal)
        bought = self._score is not None
        truncated = self._count.close(bought)
        total = self._score.total if self._score is not None else 0.0
        success = total >= 1.0
        reward = total if self.config.reward == "dense" else float(success)
        effective = after is not None and self._view != before
        info = step_info(success=success, valid=after is not None, effective=effective)
        self._shown = self._state()
        return self._shown, reward, bought, truncated, info

    def _view_after(self, action: Any) -> View | None:
        """Return the view that an action leads to; None if it cannot be done."""
        found = _ACTION.fullmatch(action) if isinstance(action, str) and len(action) <= _MOST_CHARS else None
        if found is None:
            return None
        verb, words = found[1].lower(), found[2].strip()
        if verb == "click":
            return clicked(self._view, words.lower(), self.config.show_attrs)
        if not words or not isinstance(self._view, Searching):
            return None
        numbers = self._shop.index.search(words, self.config.num_results)
        return ResultsPage(tuple(self._shop.products[number] for number in numbers), self.config.page_size)

    def available_actions(self) -> tuple[str, ...]:
        """Return all possible actions; `search[<content>]` stands for every search."""
        return actions_on(self._page())

    def _page(self) -> Page:
        return page_of(self._view, self.goal.instruction, self.config.show_attrs)

    def _state(self) -> str:
        page = self._page()
        words = as_text(page) if self.config.observation_mode == "text" else as_rich_text(page)
        if not self.config.show_actions or isinstance(self._view, Bought):
            return words
        return f"{words}\nAvailable actions: {', '.join(actions_on(page))}"

    def metrics(self) -> Mapping[str, float]:
        """Return whether something was bought, and the parts of its score."""
        if self._score is None:
            return {"bought": 0.0, "task_score": 0.0}
        return {
            "bought": 1.0,
            "task_score": self._score.total,
            "type_score": self._score.type,
            "attributes_score": self._score.attributes,
            "options_score": self._score.options,
            "price_score": self._score.price,
        }
