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
from typing import Any, Literal

from parallel_envs.choices import PageText, ShopReward, TextMode
from parallel_envs.groups.envs.base import Act, Count, EnvConfig, Share, Text, TextEnv, step_info
from parallel_envs.groups.envs.webshop.products import Goal, Product, Score, goal_of, score
from parallel_envs.groups.envs.webshop.shop import shop_for, wishes_for
from parallel_envs.seeding import SeedTree

_ACTION = re.compile(r"\s*(search|click)\s*\[(.*)\]\s*", re.IGNORECASE | re.DOTALL)
_MOST_CHARS = 1000


@dataclass(frozen=True, kw_only=True)
class WebShopConfig(EnvConfig):
    """Config of a `WebShopEnv`."""

    dataset: Literal["small", "full"] | None = None
    """As in RAGEN's files: `small` is what `file_path` says, or the included catalogue; `full` without `file_path` is
    an error when the env is made."""
    file_path: Text | None = None
    """Products: WebShop's `items_shuffle.json` or the like. None: a small catalogue that comes with the package."""
    attributes_path: Text | None = None
    """Their attributes, and made instructions: `items_ins_v2.json`. Only with `file_path`."""
    instructions_path: Text | None = None
    """Instructions by people: `items_human_ins.json`. Only with `file_path`."""
    cache_dir: Text | None = None
    """Folder of shops with large files, of which all processes share one copy. None: `parallel_envs` in the user's
    cache (`~/.cache`). The full WebShop takes about as much there as its files do."""
    human_goals: bool = True
    """Use the instructions by people. False: the made ones of the attributes' file, with random options."""
    num_products: Count | None = None
    """How many products of the file are used. None: all."""
    limit_goals: Count | None = None
    """How many instructions are used. None: all."""
    val_share: Share = 0.1
    """The part of the wanted products that is for the mode `val` alone. 0: both modes use all."""
    reward: ShopReward = "dense"
    """`dense`: how well the purchase meets the wish, from 0 to 1. `sparse`: 1 if it meets it completely, else 0."""
    observation_mode: PageText = "text"
    """`text`: the words of the page, between `[SEP]`. `text_rich`: with marks around all buttons."""
    show_actions: bool = True
    """The state ends with the possible actions."""
    show_attrs: bool = False
    """Products have a page with their attributes."""
    page_size: Count = 10
    """Products on a page of results."""
    num_results: Count = 50
    """The most products that a search finds."""
    max_steps: Count | None = None
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
        super().__post_init__()
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
    _seed_name = "webshop"

    def __init__(self, config: WebShopConfig | None = None) -> None:
        config = config or WebShopConfig()
        super().__init__(config, config.max_steps)
        self._shop, self._wishes = shop_for(config), wishes_for(config)
        self._page: Page = ()
        self._score: Score | None = None

    def _begin(self, seeds: SeedTree, training: bool) -> None:
        generator, numbers = seeds.generator(), self._wishes[0 if training else 1]
        self.goal = goal_of(self._shop.wishes[numbers[int(generator.integers(len(numbers)))]], generator)
        self._score = None
        self._show(Searching())

    def _show(self, view: View) -> None:
        self._view, self._page = view, page_of(view, self.goal.instruction, self.config.show_attrs)

    def _act(self, action: Any) -> Act:
        before = self._view
        after: View | None = None  # the view that the action leads to; None if it cannot be done
        found = _ACTION.fullmatch(action) if isinstance(action, str) and len(action) <= _MOST_CHARS else None
        verb, said = ("", "") if found is None else (found[1].lower(), found[2].strip())
        if verb == "click":
            after = next(
                (part.leads_to for part in self._page if part.text.lower() == said.lower() and part.button), None
            )
        elif said and isinstance(before, Searching):
            numbers = self._shop.index.search(said, self.config.num_results)
            after = ResultsPage(tuple(self._shop.products[number] for number in numbers), self.config.page_size)
        if after is not None:
            self._show(after)
        if isinstance(after, Bought):
            self._score = score(after.item.product, after.item.chosen, self.goal)
        total = self._score.total if self._score is not None else 0.0
        success = total >= 1.0
        reward = total if self.config.reward == "dense" else float(success)
        info = step_info(success, after is not None, after not in (None, before))
        return reward, self._score is not None, info

    def available_actions(self) -> tuple[str, ...]:
        """Return all possible actions; `search[<content>]` stands for every search."""
        buttons = [part.text.lower() for part in self._page if part.button]
        return tuple("search[<content>]" if one == "search" else f"click[{one}]" for one in dict.fromkeys(buttons))

    def _text(self) -> str:
        shown = " [SEP] ".join(part.text for part in self._page)
        if self.config.observation_mode == "text_rich":
            pressed = [f"You have clicked {part.text}." for part in self._page if part.pressed]
            shown = "\n".join([*pressed, *(part.with_marks() for part in self._page)])
        if not self.config.show_actions or isinstance(self._view, Bought):
            return shown
        return f"{shown}\nAvailable actions: {', '.join(self.available_actions())}"

    def metrics(self) -> Mapping[str, float]:
        """Return whether something was bought, and the parts of its score."""
        if self._score is None:
            return {"bought": 0.0, "task_score": 0.0}
        total, *parts = astuple(self._score)
        names = ("type_score", "attributes_score", "options_score", "price_score")
        return {"bought": 1.0, "task_score": total, **dict(zip(names, parts, strict=True))}


# ---- views and their pages ------------------------------------------------------------------------------------------


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


@dataclass(frozen=True, slots=True)
class Looking:
    """A product, and its chosen options."""

    product: Product
    results: ResultsPage
    chosen: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reading:
    """A text about a product."""

    text: str
    item: Looking


@dataclass(frozen=True, slots=True)
class Bought:
    """The end."""

    item: Looking


View = Searching | ResultsPage | Looking | Reading | Bought


@dataclass(frozen=True, slots=True)
class PagePart:
    """Words on a page. `leads_to`: the view after a click on a button. `pressed`: it has been clicked before."""

    text: str
    leads_to: View | None = None
    pressed: bool = False
    button: bool = False

    def with_marks(self) -> str:
        mark = "clicked button" if self.pressed else "button"
        return f"[{mark}] {self.text} [{mark}_]" if self.button else self.text


Page = tuple[PagePart, ...]


def page_of(view: View, instruction: str, show_attrs: bool) -> Page:
    """Return the page of a view, from top to bottom."""

    def button(words: str, leads_to: View | None, pressed: bool = False) -> PagePart:
        return PagePart(words, leads_to, pressed, True)

    match view:
        case Searching():
            return PagePart("WebShop"), PagePart("Instruction:"), PagePart(instruction), button("Search", None)
        case Bought():
            return (PagePart("Thank you for shopping with us!"),)
    parts = [PagePart("Instruction:"), PagePart(instruction), button("Back to Search", Searching())]
    match view:
        case ResultsPage(found, size, page, seen):
            parts.append(PagePart(f"Page {page} (Total results: {len(found)})"))
            if page > 1:
                parts.append(button("< Prev", replace(view, page=page - 1)))
            if page * size < len(found):
                parts.append(button("Next >", replace(view, page=page + 1)))
            for product in found[(page - 1) * size : page * size]:
                looked = Looking(product, replace(view, seen=seen | {product.asin}))
                parts += [
                    button(product.asin, looked, product.asin in seen),
                    PagePart(product.name),
                    PagePart(product.price_tag),
                ]
        case Looking(product, results, chosen):
            parts.append(button("< Prev", results))
            for name, values in product.options.items():
                parts.append(PagePart(name))
                for value in values:
                    parts.append(
                        button(value, replace(view, chosen={**chosen, name: value}), chosen.get(name) == value)
                    )
            parts += [
                PagePart(product.name),
                PagePart(f"Price: {product.price_tag}"),
                PagePart(f"Rating: {product.rating}"),
            ]
            texts = {
                "Description": product.description,
                "Features": " ".join(product.features),
                "Reviews": f"Rating: {product.rating}",
            }
            texts |= {"Attributes": " | ".join(product.attributes)} if show_attrs else {}
            parts += [button(title, Reading(text, view)) for title, text in texts.items()]
            parts.append(button("Buy Now", Bought(view)))
        case Reading(text, item):
            parts += [button("< Prev", item), PagePart(text)]
    return tuple(parts)
