"""Products and wishes, read from files in WebShop's format, and how well a purchase meets a wish.

Fields of a product's entry: `asin`, `name`, `full_description`, `small_description`, `pricing`,
`customization_options`, `category`, `query`, `product_category`, and `average_rating` if it is there. As in the
original, entries are left out if their asin is longer than 10 characters or has come before, a product without a price
costs 100, and options are in lower case with ` | ` for `/`. The price of a range is its middle; the original draws one
for each process.

The reward of a purchase:

    reward = type * (matching attributes + matching options + price) / (their number)

The formula, its thresholds and the fuzzy comparison are the original's. Two things differ. All words of a product's
name count except stop words; the original counts the words that a tagger takes for nouns. And an option counts once if
it is wanted and a similar one is chosen; the original counts each chosen option that is wanted, or that the product's
texts name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from parallel_envs.groups.envs.records import Entry, data_file_error, read_entries

_PRICE = re.compile(r"[0-9][0-9,]{0,15}(?:\.[0-9]{1,10})?")
_USUAL_PRICE = 100.0


@dataclass(frozen=True, slots=True)
class Product:
    """A product. The order of the fields is that of the files on disk (see `shop`)."""

    asin: str
    name: str
    description: str
    features: tuple[str, ...]
    price: float
    price_tag: str
    options: Mapping[str, tuple[str, ...]]
    """The values of each choice, by its name."""
    attributes: tuple[str, ...]
    category: str
    query: str
    product_category: str
    rating: str

    def words(self) -> str:
        """Return the text that a search reads."""
        choices = (value for values in self.options.values() for value in values)
        return " ".join((self.name, self.description, *self.features, *choices))


def read_products(path: str, attributes: Mapping[str, tuple[str, ...]], most: int | None) -> tuple[Product, ...]:
    """Return the products of a file in their order."""
    products: dict[str, Product] = {}
    for entry in read_entries(path, most):
        asin = entry.text("asin")
        if asin not in products and len(asin) <= 10 and asin != "nan":
            products[asin] = _product(entry, attributes.get(asin, ()))
    if not products:
        raise data_file_error(path, None, "there are no products. Give a file of WebShop's items.")
    return tuple(products.values())


def read_attributes(path: str) -> tuple[dict[str, tuple[str, ...]], dict[str, Entry]]:
    """Return attributes by product, and the entries of products that have an instruction."""
    attributes: dict[str, tuple[str, ...]] = {}
    wanted: dict[str, Entry] = {}
    for entry in read_entries(path):
        asin = entry.key if entry.key is not None else entry.text("asin")
        if entry.has("attributes"):
            attributes[asin] = entry.texts("attributes")
        if entry.has("instruction") and entry.has("instruction_attributes"):
            wanted[asin] = entry
    return attributes, wanted


def _product(entry: Entry, attributes: tuple[str, ...]) -> Product:
    given = entry.value.get("pricing")
    if isinstance(given, list):
        price_words = " ".join(map(str, given))
    else:
        price_words = str(given) if isinstance(given, int | float) else entry.text_or_empty("pricing")
    prices = [float(found.replace(",", "")) for found in _PRICE.findall(price_words)][:2] or [_USUAL_PRICE]
    features: tuple[str, ...] = ()
    if entry.has("small_description"):
        is_list = isinstance(entry.field("small_description"), list)
        features = entry.texts("small_description") if is_list else (entry.text("small_description"),)
    return Product(
        asin=entry.text("asin"),
        name=entry.text("name"),
        description=entry.text_or_empty("full_description"),
        features=features,
        price=sum(prices) / len(prices),
        price_tag=" to ".join(f"${price}" for price in prices),
        options=_options(entry),
        attributes=attributes,
        category=entry.text_or_empty("category"),
        query=entry.text_or_empty("query").lower().strip(),
        product_category=entry.text_or_empty("product_category"),
        rating=str(entry.value["average_rating"] or "N.A.") if entry.has("average_rating") else "N.A.",
    )


def _options(entry: Entry) -> dict[str, tuple[str, ...]]:
    given = entry.value.get("customization_options") or {}
    if not isinstance(given, Mapping):
        raise entry.error("`customization_options` is not an object of lists.")
    options = {}
    for name, values in given.items():
        if values:
            try:
                options[name.lower()] = tuple(dict.fromkeys(option_text(value["value"]) for value in values))
            except (TypeError, KeyError, AttributeError):
                what = f"`customization_options.{name}` is not a list of objects with a text `value`."
                raise entry.error(what) from None
    return options


def option_text(value: str) -> str:
    """Return an option as it is shown and compared."""
    return value.strip().replace("/", " | ").lower()


# ---- wishes ---------------------------------------------------------------------------------------------------------

_NO_LIMIT = 1_000_000.0
_PRICES = [10.0 * step for step in range(1, 100)]


@dataclass(frozen=True, slots=True)
class Wish:
    """An instruction of a file. `options` None: a random choice of each of the product's options."""

    product: Product
    instruction: str
    attributes: tuple[str, ...]
    options: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Goal:
    """The wish of an episode: with a price limit, and options."""

    product: Product
    instruction: str
    attributes: tuple[str, ...]
    options: tuple[str, ...]
    price_upper: float


def wishes_by_people(path: str, products: Mapping[str, Product]) -> Iterator[Wish]:
    """Yield the wishes in a file of human instructions. Leave out those without attributes or of unknown products."""
    for entry in read_entries(path, lists="instructions"):
        asin = entry.text("asin") if entry.key is None else entry.key
        if asin in products and (attributes := entry.texts("instruction_attributes")):
            instruction = entry.text("instruction")
            given = entry.value.get("instruction_options") or []
            values = list(given.values()) if isinstance(given, Mapping) else given
            if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
                raise entry.error(f"`instruction_options` is {given!r}, where texts are wanted.")
            yield Wish(products[asin], instruction, attributes, tuple(option_text(value) for value in values))


def wishes_made(entries: Mapping[str, Entry], products: Mapping[str, Product]) -> Iterator[Wish]:
    """Yield the wishes of generated instructions, which have random options."""
    for asin, entry in entries.items():
        if asin in products and (attributes := entry.texts("instruction_attributes")):
            yield Wish(products[asin], entry.text("instruction"), attributes, None)


def goal_of(wish: Wish, generator: np.random.Generator) -> Goal:
    """Return a wish with a price limit, a multiple of ten that is not far above the price, and with all options."""
    above = [price for price in _PRICES if price > wish.product.price][:4]
    limit = max(generator.choice(above, 2, replace=False).tolist()) if len(above) >= 2 else _NO_LIMIT
    options, words = wish.options, wish.instruction.strip().strip(".")
    if options is None:
        drawn = {name: values[int(generator.integers(len(values)))] for name, values in wish.product.options.items()}
        options = tuple(drawn.values())
        if drawn:
            words += " with " + ", and ".join(f"{name}: {value}" for name, value in drawn.items())
    words += f", and price lower than {limit:.2f} dollars" if limit < _NO_LIMIT else ""
    return Goal(wish.product, words, wish.attributes, options, limit)


# ---- words ----------------------------------------------------------------------------------------------------------

_WORD = re.compile(r"[a-z0-9]+")
# Lucene's stop words of English.
_STOP_WORDS = frozenset(
    re.findall(
        r"\w+",
        """
        a an and are as at be but by for if in into is it no not of on or such that the their then there these they this
        to was will with
        """,
    )
)


def words_of(text: str) -> list[str]:
    """Return the words of a text for the search: in lower case, without plurals and stop words."""
    return [
        word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word
        for word in _WORD.findall(text.lower())
        if word not in _STOP_WORDS
    ]


# ---- reward ---------------------------------------------------------------------------------------------------------

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

    def basic(text: str) -> str:
        """Return the colour in a text, if there is one: `heather navy` is navy. Else return the text."""
        words = _words_in(text)
        return next((color for color in _COLORS if color in words), text)

    wanted, own = basic(wanted), {name: basic(value) for name, value in chosen.items()}
    return any(one == wanted if name == "size" else similarity(one, wanted) > _SIMILAR for name, one in own.items())


# ---- similarity of texts, as in WebShop's fuzzy comparison ----------------------------------------------------------

_LONGEST = 300  # of texts that are compared character by character


def similarity(first: str, second: str) -> float:
    """Return how similar two texts are as sets of words, from 0 to 100. 100 if one has all words of the other."""
    one, other = set(_words_in(first[:_LONGEST])), set(_words_in(second[:_LONGEST]))
    if not one or not other:
        return 0.0
    common, rest, other_rest = sorted(one & other), sorted(one - other), sorted(other - one)
    if common and not (rest and other_rest):
        return 100.0
    shared, whole, other_whole = (" ".join(words) for words in (common, common + rest, common + other_rest))
    pairs = [(whole, other_whole), *([(shared, whole), (shared, other_whole)] if common else [])]
    return max(100.0 * 2 * common_length(left, right) / (len(left) + len(right)) for left, right in pairs)


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
