"""What is on the screen, and what a click leads to.

    Searching ── search[...] ──▶ Results ── click[asin] ──▶ Looking ── click[description] ──▶ Reading
        ▲                        next >, < prev          │  an option, < prev                 < prev
        └────── back to search ──────┴───────────────────┤
                                                         └─ click[buy now] ──▶ Bought

Views are values. What can be clicked is in lower case, as it is on WebShop's pages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from parallel_envs.groups.envs.webshop.catalogue import Product

BACK, NEXT, PREVIOUS, BUY = "back to search", "next >", "< prev", "buy now"


@dataclass(frozen=True, slots=True)
class Searching:
    """The search bar."""


@dataclass(frozen=True, slots=True)
class Results:
    """A page of what was found. `seen` are the asins that were looked at."""

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
    """A product, and which of its options are chosen."""

    product: Product
    results: Results
    chosen: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reading:
    """More about a product."""

    what: str
    item: Looking


@dataclass(frozen=True, slots=True)
class Bought:
    """The end."""

    item: Looking


View = Searching | Results | Looking | Reading | Bought


def more_about(product: Product, show_attrs: bool) -> dict[str, str]:
    """What can be read about a product, by the button that leads there."""
    pages = {
        "description": product.description,
        "features": " ".join(product.features),
        "reviews": f"Rating: {product.rating}",
    }
    return pages | {"attributes": " | ".join(product.attributes)} if show_attrs else pages


def clicked(view: View, what: str, show_attrs: bool) -> View | None:
    """The view behind a click; None where this cannot be clicked."""
    match view:
        case Results() | Looking() | Reading() if what == BACK:
            return Searching()
        case Results():
            return _among_results(view, what)
        case Looking():
            return _at_item(view, what, show_attrs)
        case Reading(item=item) if what == PREVIOUS:
            return item
    return None


def _among_results(view: Results, what: str) -> View | None:
    if what == NEXT and view.has_more:
        return replace(view, page=view.page + 1)
    if what == PREVIOUS and view.page > 1:
        return replace(view, page=view.page - 1)
    product = next((product for product in view.shown if product.asin.lower() == what), None)
    return None if product is None else Looking(product, replace(view, seen=view.seen | {product.asin}))


def _at_item(view: Looking, what: str, show_attrs: bool) -> View | None:
    if what == PREVIOUS:
        return view.results
    if what == BUY:
        return Bought(view)
    if what in more_about(view.product, show_attrs):
        return Reading(what, view)
    name = next((name for name, values in view.product.options.items() if what in values), None)
    return None if name is None else replace(view, chosen={**view.chosen, name: what})
