"""How well a purchase meets a goal: WebShop's reward.

    reward = type * (attributes that match + options that match + price) / (their number)

The formula, its thresholds and the fuzzy comparison are the original's. Two things differ: the words of a product's
name are all but those that say nothing, where the original takes what a tagger holds for nouns; and an option counts
once if it is wanted and one like it is chosen, where the original counts each chosen one that is wanted, or that the
product's texts name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from parallel_envs.groups.envs.webshop.catalogue import Product
from parallel_envs.groups.envs.webshop.goals import Goal
from parallel_envs.groups.envs.webshop.likeness import similarity, words_in
from parallel_envs.groups.envs.webshop.ranking import words_of

_SIMILAR = 85.0
_EXACT = ("size",)
_COLORS = tuple(
    re.findall(
        r"\w+",
        """
        aqua beige black blue bronze brown burgundy charcoal coral cream crimson cyan gold gray green grey indigo ivory
        khaki lavender lilac lime magenta maroon mint mustard navy olive orange peach pink plum purple red rose rust
        silver tan taupe teal turquoise violet white yellow
        """,
    )
)


@dataclass(frozen=True, slots=True)
class Score:
    """The reward and its parts, each from 0 to 1."""

    total: float
    type: float
    attributes: float
    options: float
    price: float


def score(product: Product, chosen: Mapping[str, str], goal: Goal) -> Score:
    """What buying a product with these options is worth."""
    attributes = sum(has_attribute(product, wanted) for wanted in goal.attributes)
    options = sum(has_option(product, chosen, wanted) for wanted in goal.options)
    price = float(product.price <= goal.price_upper)
    kind = type_score(product, goal.product)
    total = kind * (attributes + options + price) / (len(goal.attributes) + len(goal.options) + 1)
    return Score(total, kind, _share(attributes, goal.attributes), _share(options, goal.options), price)


def _share(matches: int, wanted: tuple[str, ...]) -> float:
    return matches / len(wanted) if wanted else 1.0


def type_score(product: Product, wanted: Product) -> float:
    """Whether a product is of the wanted kind: 1, 0.5, 0.1 or 0."""
    wanted_words = set(words_of(wanted.name))
    share = len(wanted_words & set(words_of(product.name))) / len(wanted_words) if wanted_words else 0.2
    if share < 0.1:
        return 0.1 if share else 0.0
    alike = product.query == wanted.query or len(_categories(product) & _categories(wanted)) >= 2
    return 1.0 if alike or share > 0.2 else 0.5


def _categories(product: Product) -> set[str]:
    return {part.strip() for part in product.product_category.split("\u203a")}


def has_attribute(product: Product, wanted: str) -> bool:
    return any(similarity(own, wanted) > _SIMILAR for own in product.attributes) or _told(product, wanted)


def has_option(product: Product, chosen: Mapping[str, str], wanted: str) -> bool:
    """Whether one of the chosen options is the wanted one: a size to the letter, others nearly."""
    return any(_option_matches(name, value, wanted) for name, value in chosen.items())


def _option_matches(name: str, value: str, wanted: str) -> bool:
    value, wanted = basic_color(value), basic_color(wanted)
    return value == wanted if name in _EXACT else similarity(value, wanted) > _SIMILAR


def _told(product: Product, words: str) -> bool:
    """Whether the product's own texts say so."""
    words = words.lower()
    return any(words in text.lower() for text in (product.name, " ".join(product.features), product.description))


def basic_color(text: str) -> str:
    """The colour that a text names, if it names one: `heather navy` is navy."""
    words = words_in(text)
    return next((color for color in _COLORS if color in words), text)
