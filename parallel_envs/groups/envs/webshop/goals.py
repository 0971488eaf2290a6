"""What is wanted: an instruction, and what a purchase must have to meet it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from parallel_envs.groups.envs.records import Entry, read_lists
from parallel_envs.groups.envs.webshop.catalogue import Product, option_text

_NO_LIMIT = 1_000_000.0
_PRICES = [10.0 * step for step in range(1, 100)]


@dataclass(frozen=True, slots=True)
class Wish:
    """An instruction of a file. `options` None: a choice of each of the product's is drawn."""

    product: Product
    instruction: str
    attributes: tuple[str, ...]
    options: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Goal:
    """A wish as an episode has it: with a price, and options."""

    product: Product
    instruction: str
    attributes: tuple[str, ...]
    options: tuple[str, ...]
    price_upper: float


def read_instructions(path: str) -> Iterator[tuple[str, Entry]]:
    """Instructions by people, each with the product that it is about."""
    for entry in read_lists(path, "instructions"):
        yield entry.text("asin") if entry.key is None else entry.key, entry


def wishes_by_people(entries: Iterable[tuple[str, Entry]], products: Mapping[str, Product]) -> Iterator[Wish]:
    """Those about products that are there, and that name attributes."""
    for asin, entry in entries:
        if asin in products and (attributes := entry.texts("instruction_attributes")):
            yield Wish(products[asin], entry.text("instruction"), attributes, _chosen(entry))


def wishes_made(entries: Mapping[str, Entry], products: Mapping[str, Product]) -> Iterator[Wish]:
    """The same for made instructions, whose options are drawn."""
    for asin, entry in entries.items():
        if asin in products and (attributes := entry.texts("instruction_attributes")):
            yield Wish(products[asin], entry.text("instruction"), attributes, None)


def _chosen(entry: Entry) -> tuple[str, ...]:
    """Options by name, or without names."""
    given = entry.value.get("instruction_options") or []
    values = list(given.values()) if isinstance(given, Mapping) else given
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise entry.fault(f"`instruction_options` is {given!r}, where texts are wanted.")
    return tuple(option_text(value) for value in values)


def goal_of(wish: Wish, generator: np.random.Generator) -> Goal:
    """A wish with a limit for the price, a multiple of ten that is not far above it, and with all its options."""
    above = [price for price in _PRICES if price > wish.product.price][:4]
    limit = max(generator.choice(above, 2, replace=False).tolist()) if len(above) >= 2 else _NO_LIMIT
    options, words = wish.options, wish.instruction.strip().strip(".")
    if options is None:
        drawn = {name: values[int(generator.integers(len(values)))] for name, values in wish.product.options.items()}
        options, words = tuple(drawn.values()), words + _told(drawn)
    words += f", and price lower than {limit:.2f} dollars" if limit < _NO_LIMIT else ""
    return Goal(wish.product, words, wish.attributes, options, limit)


def _told(options: Mapping[str, str]) -> str:
    return " with " + ", and ".join(f"{name}: {value}" for name, value in options.items()) if options else ""
