"""Products, read from files in WebShop's format.

Of a product's entry are used: `asin`, `name`, `full_description`, `small_description`, `pricing`,
`customization_options`, `category`, `query`, `product_category`, and `average_rating` if it is there. As in the
original, entries whose asin is longer than 10 signs and later ones of the same asin are left out, a product without a
price costs 100, and options are in lower case with ` | ` for `/`. A price that is a range is its middle, where the
original draws one for each process.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from parallel_envs.groups.envs.faults import fault
from parallel_envs.groups.envs.records import Entry, read_entries

_PRICE = re.compile(r"[0-9][0-9,]{0,15}(?:\.[0-9]{1,10})?")
_USUAL_PRICE = 100.0


@dataclass(frozen=True, slots=True)
class Product:
    """What can be bought."""

    asin: str
    name: str
    description: str
    features: tuple[str, ...]
    price: float
    price_tag: str
    options: Mapping[str, tuple[str, ...]]
    """What can be chosen, by the name of the choice."""
    attributes: tuple[str, ...]
    category: str
    query: str
    product_category: str
    rating: str

    def words(self) -> str:
        """What a search reads."""
        choices = (value for values in self.options.values() for value in values)
        return " ".join((self.name, self.description, *self.features, *choices))


def read_products(path: str, attributes: Mapping[str, tuple[str, ...]], most: int | None) -> tuple[Product, ...]:
    """The products of a file in their order."""
    products: dict[str, Product] = {}
    for entry in read_entries(path, most):
        asin = entry.text("asin")
        if asin not in products and len(asin) <= 10 and asin != "nan":
            products[asin] = _product(entry, attributes.get(asin, ()))
    if not products:
        raise fault(path, None, "there are no products. Give a file of WebShop's items.")
    return tuple(products.values())


def read_attributes(path: str) -> tuple[dict[str, tuple[str, ...]], dict[str, Entry]]:
    """Attributes by product, and the entries of products that have an instruction."""
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
    return Product(
        asin=entry.text("asin"),
        name=entry.text("name"),
        description=_text_or(entry, "full_description"),
        features=_features(entry),
        price=price,
        price_tag=price_tag,
        options=_options(entry),
        attributes=attributes,
        category=_text_or(entry, "category"),
        query=_text_or(entry, "query").lower().strip(),
        product_category=_text_or(entry, "product_category"),
        rating=str(entry.value["average_rating"] or "N.A.") if entry.has("average_rating") else "N.A.",
    )


def _text_or(entry: Entry, name: str) -> str:
    return entry.text(name) if entry.has(name) else ""


def _features(entry: Entry) -> tuple[str, ...]:
    if not entry.has("small_description"):
        return ()
    return (
        entry.texts("small_description")
        if isinstance(entry.field("small_description"), list)
        else (entry.text("small_description"),)
    )


def _price(entry: Entry) -> tuple[float, str]:
    told = entry.value.get("pricing")
    many = told if isinstance(told, list) else [told] if isinstance(told, int | float) else [_text_or(entry, "pricing")]
    words = " ".join(map(str, many))
    prices = [float(found.replace(",", "")) for found in _PRICE.findall(words)][:2]
    if not prices:
        return _USUAL_PRICE, f"${_USUAL_PRICE}"
    return sum(prices) / len(prices), " to ".join(f"${price}" for price in prices)


def _options(entry: Entry) -> dict[str, tuple[str, ...]]:
    given = entry.value.get("customization_options") or {}
    if not isinstance(given, Mapping):
        raise entry.fault("`customization_options` is not an object of lists.")
    return {name.lower(): _values(entry, name, values) for name, values in given.items() if values}


def _values(entry: Entry, name: str, values: Any) -> tuple[str, ...]:
    if not isinstance(values, list) or not all(
        isinstance(v, Mapping) and isinstance(v.get("value"), str) for v in values
    ):
        raise entry.fault(f"`customization_options.{name}` is not a list of objects with a text `value`.")
    return tuple(dict.fromkeys(option_text(value["value"]) for value in values))


def option_text(value: str) -> str:
    """An option as it is shown and compared."""
    return value.strip().replace("/", " | ").lower()
