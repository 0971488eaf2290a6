"""Products and wishes, read from files in WebShop's format.

Fields of a product's entry: `asin`, `name`, `full_description`, `small_description`, `pricing`,
`customization_options`, `category`, `query`, `product_category`, and `average_rating` if it is there. As in the
original, entries are left out if their asin is longer than 10 characters or has come before, a product without a price
costs 100, and options are in lower case with ` | ` for `/`. The price of a range is its middle; the original draws one
for each process.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from parallel_envs.groups.envs.records import Entry, data_file_error, read_entries, read_lists

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
    price, price_tag = _price(entry)
    features: tuple[str, ...] = ()
    if entry.has("small_description"):
        is_list = isinstance(entry.field("small_description"), list)
        features = entry.texts("small_description") if is_list else (entry.text("small_description"),)
    return Product(
        asin=entry.text("asin"),
        name=entry.text("name"),
        description=_text_or_empty(entry, "full_description"),
        features=features,
        price=price,
        price_tag=price_tag,
        options=_options(entry),
        attributes=attributes,
        category=_text_or_empty(entry, "category"),
        query=_text_or_empty(entry, "query").lower().strip(),
        product_category=_text_or_empty(entry, "product_category"),
        rating=str(entry.value["average_rating"] or "N.A.") if entry.has("average_rating") else "N.A.",
    )


def _text_or_empty(entry: Entry, name: str) -> str:
    return entry.text(name) if entry.has(name) else ""


def _price(entry: Entry) -> tuple[float, str]:
    given = entry.value.get("pricing")
    if isinstance(given, list):
        words = " ".join(map(str, given))
    else:
        words = str(given) if isinstance(given, int | float) else _text_or_empty(entry, "pricing")
    prices = [float(found.replace(",", "")) for found in _PRICE.findall(words)][:2]
    if not prices:
        return _USUAL_PRICE, f"${_USUAL_PRICE}"
    return sum(prices) / len(prices), " to ".join(f"${price}" for price in prices)


def _options(entry: Entry) -> dict[str, tuple[str, ...]]:
    given = entry.value.get("customization_options") or {}
    if not isinstance(given, Mapping):
        raise entry.error("`customization_options` is not an object of lists.")
    options = {}
    for name, values in given.items():
        if not values:
            continue
        if not isinstance(values, list) or not all(
            isinstance(v, Mapping) and isinstance(v.get("value"), str) for v in values
        ):
            raise entry.error(f"`customization_options.{name}` is not a list of objects with a text `value`.")
        options[name.lower()] = tuple(dict.fromkeys(option_text(value["value"]) for value in values))
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


def read_instructions(path: str) -> Iterator[tuple[str, Entry]]:
    """Yield instructions by people, each with the asin of its product."""
    for entry in read_lists(path, "instructions"):
        yield entry.text("asin") if entry.key is None else entry.key, entry


def wishes_by_people(entries: Iterable[tuple[str, Entry]], products: Mapping[str, Product]) -> Iterator[Wish]:
    """Yield the wishes about existing products that name attributes."""
    for asin, entry in entries:
        if asin in products and (attributes := entry.texts("instruction_attributes")):
            instruction = entry.text("instruction")
            given = entry.value.get("instruction_options") or []
            values = list(given.values()) if isinstance(given, Mapping) else given
            if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
                raise entry.error(f"`instruction_options` is {given!r}, where texts are wanted.")
            yield Wish(products[asin], instruction, attributes, tuple(option_text(value) for value in values))


def wishes_made(entries: Mapping[str, Entry], products: Mapping[str, Product]) -> Iterator[Wish]:
    """Yield the wishes of made instructions, which have random options."""
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
