"""Views of the shop, the clicks that lead from one to another, and their pages in text.

    Searching ── search[...] ──▶ ResultsPage ─ click[asin] ──▶ Looking ── click[description] ──▶ Reading
        ▲                        next >, < prev             │  an option, < prev                 < prev
        └────── back to search ──────┴──────────────────────┤
                                                            └─ click[buy now] ──▶ Bought

Views are values. Buttons are in lower case, as on WebShop's pages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from parallel_envs.groups.envs.webshop.products import Product

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
    head = Part("Instruction:"), Part(instruction), Part("Back to Search", button=True)
    return *head, *_body(view, show_attrs)


def _body(view: ResultsPage | Looking | Reading, show_attrs: bool) -> Iterator[Part]:
    match view:
        case ResultsPage():
            yield Part(f"Page {view.page} (Total results: {len(view.found)})")
            if view.page > 1:
                yield Part("< Prev", button=True)
            if view.has_more:
                yield Part("Next >", button=True)
            for product in view.shown:
                yield Part(product.asin, button=True, pressed=product.asin in view.seen)
                yield Part(product.name)
                yield Part(product.price_tag)
        case Looking(product=product):
            yield Part("< Prev", button=True)
            for name, values in product.options.items():
                yield Part(name)
                for value in values:
                    yield Part(value, button=True, pressed=view.chosen.get(name) == value)
            yield from (Part(product.name), Part(f"Price: {product.price_tag}"), Part(f"Rating: {product.rating}"))
            for button in (*more_about(product, show_attrs), BUY):
                yield Part(button.title(), button=True)
        case Reading(what, item):
            yield Part("< Prev", button=True)
            yield Part(more_about(item.product, show_attrs)[what])


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
