"""Views in words, in the two forms of WebShop's text environments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from parallel_envs.groups.envs.webshop.views import (
    BUY,
    Bought,
    Looking,
    Reading,
    Results,
    Searching,
    View,
    more_about,
)


@dataclass(frozen=True, slots=True)
class Part:
    """Some words on a page. `pressed`: it was clicked before."""

    text: str
    button: bool = False
    pressed: bool = False


Page = tuple[Part, ...]


def page_of(view: View, instruction: str, show_attrs: bool) -> Page:
    """What a view shows, from top to bottom."""
    return tuple(_parts(view, instruction, show_attrs))


def _parts(view: View, instruction: str, show_attrs: bool) -> Iterator[Part]:
    match view:
        case Searching():
            yield from (Part("WebShop"), Part("Instruction:"), Part(instruction), Part("Search", button=True))
        case Bought():
            yield Part("Thank you for shopping with us!")
        case _:
            yield from (Part("Instruction:"), Part(instruction), Part("Back to Search", button=True))
            yield from _body(view, show_attrs)


def _body(view: Results | Looking | Reading, show_attrs: bool) -> Iterator[Part]:
    match view:
        case Results():
            yield from _results(view)
        case Looking():
            yield from _item(view, show_attrs)
        case Reading(what, item):
            yield Part("< Prev", button=True)
            yield Part(more_about(item.product, show_attrs)[what])


def _results(view: Results) -> Iterator[Part]:
    yield Part(f"Page {view.page} (Total results: {len(view.found)})")
    if view.page > 1:
        yield Part("< Prev", button=True)
    if view.has_more:
        yield Part("Next >", button=True)
    for product in view.shown:
        yield Part(product.asin, button=True, pressed=product.asin in view.seen)
        yield Part(product.name)
        yield Part(product.price_tag)


def _item(view: Looking, show_attrs: bool) -> Iterator[Part]:
    product = view.product
    yield Part("< Prev", button=True)
    for name, values in product.options.items():
        yield Part(name)
        for value in values:
            yield Part(value, button=True, pressed=view.chosen.get(name) == value)
    yield from (Part(product.name), Part(f"Price: {product.price_tag}"), Part(f"Rating: {product.rating}"))
    for button in (*more_about(product, show_attrs), BUY):
        yield Part(button.title(), button=True)


# ---- in words -------------------------------------------------------------------------------------


def as_text(page: Page) -> str:
    return " [SEP] ".join(part.text for part in page)


def as_rich_text(page: Page) -> str:
    """With a mark on whatever can be clicked, and a word on what was."""
    pressed = [f"You have clicked {part.text}." for part in page if part.pressed]
    return "\n".join([*pressed, *(_marked(part) for part in page)])


def _marked(part: Part) -> str:
    if not part.button:
        return part.text
    mark = "clicked button" if part.pressed else "button"
    return f"[{mark}] {part.text} [{mark}_]"


def actions_on(page: Page) -> tuple[str, ...]:
    """What can be done, as actions are written."""
    buttons = [part.text.lower() for part in page if part.button]
    return tuple("search[<content>]" if button == "search" else f"click[{button}]" for button in dict.fromkeys(buttons))
