"""The shop as an environment: its config, its views, the clicks that lead from one to another, and their pages in text.

    Searching ── search[...] ──▶ ResultsPage ─ click[asin] ──▶ Looking ── click[description] ──▶ Reading
        ▲                        next >, < prev             │  an option, < prev                 < prev
        └────── back to search ──────┴──────────────────────┤
                                                            └─ click[buy now] ──▶ Bought

Views are values. Buttons are in lower case, as on WebShop's pages.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field, replace
from functools import partial
from typing import Any

from parallel_envs.choices import PageText, ShopReward, TextMode, words
from parallel_envs.groups.envs import base as fields
from parallel_envs.groups.envs.base import Step, StepCount, TextEnv, step_info
from parallel_envs.groups.envs.webshop.products import Goal, Product, Score, goal_of, score
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
        fields.check(
            self,
            file_path=fields.path,
            attributes_path=fields.path,
            instructions_path=fields.path,
            cache_dir=fields.path,
            human_goals=fields.flag,
            show_actions=fields.flag,
            show_attrs=fields.flag,
            num_products=partial(fields.count, none=True),
            limit_goals=partial(fields.count, none=True),
            max_steps=partial(fields.count, none=True),
            val_share=partial(fields.number, least=0.0, most=1.0),
            reward=words(ShopReward),
            observation_mode=words(PageText),
            page_size=fields.count,
            num_results=fields.count,
            render_mode=words(TextMode),
        )
        if self.dataset is not None:
            fields.choice("dataset", self.dataset, ("small", "full"))
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
        numbers = self._training if mode == "train" else self._validation
        self.goal = goal_of(self._shop.wishes[numbers[int(generator.integers(len(numbers)))]], generator)
        self._view, self._score = Searching(), None
        self._count.start()
        self._shown = self._state()
        return self._shown

    def step(self, action: Any) -> Step:
        self._count.tick()
        before = self._view
        after: View | None = None  # the view that the action leads to; None if it cannot be done
        found = _ACTION.fullmatch(action) if isinstance(action, str) and len(action) <= _MOST_CHARS else None
        verb, said = ("", "") if found is None else (found[1].lower(), found[2].strip())
        if verb == "click":
            after = clicked(self._view, said.lower(), self.config.show_attrs)
        elif said and isinstance(self._view, Searching):
            numbers = self._shop.index.search(said, self.config.num_results)
            after = ResultsPage(tuple(self._shop.products[number] for number in numbers), self.config.page_size)
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

    def available_actions(self) -> tuple[str, ...]:
        """Return all possible actions; `search[<content>]` stands for every search."""
        return actions_on(page_of(self._view, self.goal.instruction, self.config.show_attrs))

    def _state(self) -> str:
        page = page_of(self._view, self.goal.instruction, self.config.show_attrs)
        shown = as_text(page) if self.config.observation_mode == "text" else as_rich_text(page)
        if not self.config.show_actions or isinstance(self._view, Bought):
            return shown
        return f"{shown}\nAvailable actions: {', '.join(actions_on(page))}"

    def metrics(self) -> Mapping[str, float]:
        """Return whether something was bought, and the parts of its score."""
        if self._score is None:
            return {"bought": 0.0, "task_score": 0.0}
        total, *parts = astuple(self._score)
        names = ("type_score", "attributes_score", "options_score", "price_score")
        return {"bought": 1.0, "task_score": total, **dict(zip(names, parts, strict=True))}


# ---- views ----------------------------------------------------------------------------------------------------------

BACK, NEXT, PREVIOUS, BUY = "back to search", "next >", "< prev", "buy now"


@dataclass(frozen=True, slots=True)
class Searching:
    """The search bar."""


@dataclass(frozen=True, slots=True)
class ResultsPage:
    """A page of found products. `seen`: the asins of products that were opened."""

    found: tuple[Product, ...]
    page_size: int
    page: int = 1
    seen: frozenset[str] = frozenset()

    @property
    def shown(self) -> tuple[Product, ...]:
        return self.found[(self.page - 1) * self.page_size : self.page * self.page_size]

    @property
    def has_more(self) -> bool:
        return self.page * self.page_size < len(self.found)


@dataclass(frozen=True, slots=True)
class Looking:
    """A product, and its chosen options."""

    product: Product
    results: ResultsPage
    chosen: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reading:
    """A text about a product."""

    what: str
    item: Looking


@dataclass(frozen=True, slots=True)
class Bought:
    """The end."""

    item: Looking


View = Searching | ResultsPage | Looking | Reading | Bought


def more_about(product: Product, show_attrs: bool) -> dict[str, str]:
    """Return the texts about a product, by the button that leads there."""
    pages = {
        "description": product.description,
        "features": " ".join(product.features),
        "reviews": f"Rating: {product.rating}",
    }
    return pages | {"attributes": " | ".join(product.attributes)} if show_attrs else pages


def clicked(view: View, what: str, show_attrs: bool) -> View | None:
    """Return the view after a click; None if the page has no such button."""
    match view:
        case ResultsPage() | Looking() | Reading() if what == BACK:
            return Searching()
        case ResultsPage():
            if what == NEXT and view.has_more:
                return replace(view, page=view.page + 1)
            if what == PREVIOUS and view.page > 1:
                return replace(view, page=view.page - 1)
            product = next((product for product in view.shown if product.asin.lower() == what), None)
            return None if product is None else Looking(product, replace(view, seen=view.seen | {product.asin}))
        case Looking():
            if what == PREVIOUS:
                return view.results
            if what == BUY:
                return Bought(view)
            if what in more_about(view.product, show_attrs):
                return Reading(what, view)
            name = next((name for name, values in view.product.options.items() if what in values), None)
            return None if name is None else replace(view, chosen={**view.chosen, name: what})
        case Reading(item=item) if what == PREVIOUS:
            return item
    return None


# ---- pages ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Part:
    """Words on a page. `pressed`: the button has been clicked before."""

    text: str
    button: bool = False
    pressed: bool = False


Page = tuple[Part, ...]


def page_of(view: View, instruction: str, show_attrs: bool) -> Page:
    """Return the page of a view, from top to bottom."""
    match view:
        case Searching():
            return Part("WebShop"), Part("Instruction:"), Part(instruction), Part("Search", button=True)
        case Bought():
            return (Part("Thank you for shopping with us!"),)
    parts = [Part("Instruction:"), Part(instruction), Part("Back to Search", button=True)]
    match view:
        case ResultsPage():
            parts += [Part(f"Page {view.page} (Total results: {len(view.found)})")]
            parts += [Part("< Prev", button=True)] * (view.page > 1) + [Part("Next >", button=True)] * view.has_more
            for product in view.shown:
                parts += [Part(product.asin, button=True, pressed=product.asin in view.seen)]
                parts += [Part(product.name), Part(product.price_tag)]
        case Looking(product=product):
            parts += [Part("< Prev", button=True)]
            for name, values in product.options.items():
                chosen = view.chosen.get(name)
                parts += [Part(name), *(Part(value, button=True, pressed=chosen == value) for value in values)]
            parts += [Part(product.name), Part(f"Price: {product.price_tag}"), Part(f"Rating: {product.rating}")]
            parts += [Part(name.title(), button=True) for name in (*more_about(product, show_attrs), BUY)]
        case Reading(what, item):
            parts += [Part("< Prev", button=True), Part(more_about(item.product, show_attrs)[what])]
    return tuple(parts)


def as_text(page: Page) -> str:
    return " [SEP] ".join(part.text for part in page)


def as_rich_text(page: Page) -> str:
    """Return a page with marks around all buttons, and a line for each button that has been clicked."""

    def marked(part: Part) -> str:
        if not part.button:
            return part.text
        mark = "clicked button" if part.pressed else "button"
        return f"[{mark}] {part.text} [{mark}_]"

    pressed = [f"You have clicked {part.text}." for part in page if part.pressed]
    return "\n".join([*pressed, *(marked(part) for part in page)])


def actions_on(page: Page) -> tuple[str, ...]:
    """Return the possible actions, as they are written."""
    buttons = [part.text.lower() for part in page if part.button]
    return tuple("search[<content>]" if button == "search" else f"click[{button}]" for button in dict.fromkeys(buttons))
