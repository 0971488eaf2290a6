"""WebShop's reward: how well a purchase meets a goal.

    reward = type * (matching attributes + matching options + price) / (their number)

The formula, its thresholds and the fuzzy comparison are the original's. Two things differ. All words of a product's
name count except stop words; the original counts the words that a tagger takes for nouns. And an option counts once if
it is wanted and a similar one is chosen; the original counts each chosen option that is wanted, or that the product's
texts name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from parallel_envs.groups.envs.webshop.products import Goal, Product
from parallel_envs.groups.envs.webshop.shop import words_of

_SIMILAR = 85.0
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
    """Return the score of buying a product with these options."""
    attributes = sum(has_attribute(product, wanted) for wanted in goal.attributes)
    options = sum(has_option(chosen, wanted) for wanted in goal.options)
    price = float(product.price <= goal.price_upper)
    kind = type_score(product, goal.product)
    total = kind * (attributes + options + price) / (len(goal.attributes) + len(goal.options) + 1)

    def share(matches: int, wanted: tuple[str, ...]) -> float:
        return matches / len(wanted) if wanted else 1.0

    return Score(total, kind, share(attributes, goal.attributes), share(options, goal.options), price)


def type_score(product: Product, wanted: Product) -> float:
    """Return how well the kind of a product matches: 1, 0.5, 0.1 or 0."""
    wanted_words = set(words_of(wanted.name))
    share = len(wanted_words & set(words_of(product.name))) / len(wanted_words) if wanted_words else 0.2
    if share < 0.1:
        return 0.1 if share else 0.0
    own, other = ({part.strip() for part in one.product_category.split("\u203a")} for one in (product, wanted))
    alike = product.query == wanted.query or len(own & other) >= 2
    return 1.0 if alike or share > 0.2 else 0.5


def has_attribute(product: Product, wanted: str) -> bool:
    """Return whether an attribute of the product is similar to the wanted one, or its texts contain that."""
    if any(similarity(own, wanted) > _SIMILAR for own in product.attributes):
        return True
    texts = (product.name, " ".join(product.features), product.description)
    return any(wanted.lower() in text.lower() for text in texts)


def has_option(chosen: Mapping[str, str], wanted: str) -> bool:
    """Return whether a chosen option is the wanted one: a size exactly, other options nearly."""
    wanted = _basic_color(wanted)
    for name, value in chosen.items():
        own = _basic_color(value)
        if own == wanted if name == "size" else similarity(own, wanted) > _SIMILAR:
            return True
    return False


def _basic_color(text: str) -> str:
    """Return the colour in a text, if there is one: `heather navy` is navy. Else return the text."""
    words = _words_in(text)
    return next((color for color in _COLORS if color in words), text)


# ---- similarity of texts, as in WebShop's fuzzy comparison ----------------------------------------------------------

_LONGEST = 300  # of texts that are compared character by character


def similarity(first: str, second: str) -> float:
    """Return how similar two texts are as sets of words, from 0 to 100. 100 if one has all words of the other."""
    one, other = set(_words_in(first[:_LONGEST])), set(_words_in(second[:_LONGEST]))
    if not one or not other:
        return 0.0
    common, rest, other_rest = one & other, one - other, other - one
    if common and not (rest and other_rest):
        return 100.0
    shared, whole, other_whole = _joined(common), _joined(common, rest), _joined(common, other_rest)
    pairs = [(whole, other_whole)]
    if common:
        pairs += [(shared, whole), (shared, other_whole)]
    return max(100.0 * 2 * common_length(left, right) / (len(left) + len(right)) for left, right in pairs)


def _joined(*parts: Iterable[str]) -> str:
    return " ".join(word for part in parts for word in sorted(part))


def _words_in(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", text.lower())


def common_length(first: str, second: str) -> int:
    """Return the length of the longest common subsequence. The bits of a number are a row of the usual table."""
    places: dict[str, int] = {}
    for place, sign in enumerate(first):
        places[sign] = places.get(sign, 0) | 1 << place
    full = (1 << len(first)) - 1
    row = full
    for sign in second:
        here = row & places.get(sign, 0)
        row = (row + here) | (row - here)
    return len(first) - (row & full).bit_count()
