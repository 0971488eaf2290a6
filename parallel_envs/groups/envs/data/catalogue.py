"""Makes the files of the small shop: products, attributes and instructions in WebShop's format.

All of it is invented.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Record = dict[str, Any]

NUM_PER_KIND = 10
BRANDS = ("Norvik", "Peralta", "Oakmere", "Lumiva", "Tansu", "Brightwell", "Kestrel", "Halden")


@dataclass(frozen=True)
class Kind:
    """Products of a kind, and what they differ in."""

    code: str
    noun: str
    category: str
    path: str
    attributes: tuple[str, ...]
    options: Mapping[str, tuple[str, ...]]
    cheapest: int
    dearest: int


KINDS = (
    Kind(
        "SHRT",
        "button down shirt",
        "fashion",
        "Clothing \u203a Men \u203a Shirts",
        ("machine washable", "long sleeve", "slim fit", "cotton blend", "wrinkle free"),
        {"size": ("small", "medium", "large", "x-large"), "color": ("navy", "white", "olive", "burgundy")},
        15,
        60,
    ),
    Kind(
        "SHOE",
        "running shoes",
        "fashion",
        "Clothing \u203a Shoes \u203a Athletic",
        ("rubber sole", "arch support", "light weight", "water resistant", "memory foam"),
        {"size": ("7", "8", "9", "10", "11"), "color": ("black", "grey", "coral", "teal")},
        30,
        140,
    ),
    Kind(
        "LAMP",
        "table lamp",
        "garden",
        "Home \u203a Lighting \u203a Lamps",
        ("easy assemble", "energy efficient", "dimmable light", "solid wood", "touch control"),
        {"color": ("black", "ivory", "bronze")},
        18,
        95,
    ),
    Kind(
        "SNAK",
        "trail mix",
        "grocery",
        "Grocery \u203a Snacks \u203a Nuts",
        ("gluten free", "low sodium", "non gmo", "high protein", "resealable bag"),
        {
            "size": ("8 ounce (pack of 1)", "8 ounce (pack of 4)", "16 ounce (pack of 2)"),
            "flavor": ("cherry", "cocoa", "sea salt"),
        },
        6,
        45,
    ),
    Kind(
        "CREM",
        "face cream",
        "beauty",
        "Beauty \u203a Skin Care \u203a Face",
        ("fragrance free", "cruelty free", "dry skin", "hyaluronic acid", "anti aging"),
        {"size": ("1 fl oz", "3.4 fl oz")},
        8,
        70,
    ),
    Kind(
        "CABL",
        "usb c cable",
        "electronics",
        "Electronics \u203a Accessories \u203a Cables",
        ("fast charging", "gold plated", "nylon braided", "high speed", "data transfer"),
        {"size": ("3 feet", "6 feet", "10 feet"), "color": ("black", "red", "silver")},
        5,
        30,
    ),
)


def made() -> dict[str, Any]:
    """What the three files hold, by their names."""
    draw = random.Random(0)
    items: list[Record] = []
    attributes: dict[str, Record] = {}
    instructions: dict[str, list[Record]] = {}
    for kind in KINDS:
        for number in range(NUM_PER_KIND):
            own = draw.sample(kind.attributes, 3)
            items.append(item(draw, kind, f"B0{kind.code}{number:04d}", own))
            asin = items[-1]["asin"]
            wanted = sorted(draw.sample(own, 2))
            attributes[asin] = {
                "attributes": own,
                "instruction": f"Find me {wanted[0]}, {wanted[1]} {kind.noun}",
                "instruction_attributes": wanted,
            }
            instructions[asin] = list(asked(draw, kind, asin, own))
    return {"shop_items.json": items, "shop_attributes.json": attributes, "shop_instructions.json": instructions}


def item(draw: random.Random, kind: Kind, asin: str, own: list[str]) -> Record:
    brand, price = draw.choice(BRANDS), draw.randint(kind.cheapest, kind.dearest) - 0.01
    dearer = f"${price + draw.randint(2, 9):.2f}" if draw.random() < 0.2 else ""
    return {
        "asin": asin,
        "name": f"{brand} {own[0].title()} {kind.noun.title()} No. {asin[-4:].lstrip('0') or '0'}",
        "full_description": f"The {brand} {kind.noun} is made for every day. It stands out for this: {own[1]}.",
        "small_description": [f"{one.capitalize()}." for one in own],
        "pricing": f"${price:.2f}{dearer}",
        "images": [""],
        "customization_options": {
            name: [{"value": value, "image": None} for value in values] for name, values in kind.options.items()
        },
        "category": kind.category,
        "query": kind.noun,
        "product_category": kind.path,
        "average_rating": f"{draw.randint(30, 50) / 10} out of 5 stars",
    }


def asked(draw: random.Random, kind: Kind, asin: str, own: list[str]) -> Iterator[Record]:
    """Two instructions, each with some attributes and a choice of every option."""
    for opening in ("i am looking for", "i want to buy"):
        attributes = sorted(draw.sample(own, 2))
        options = [draw.choice(values) for values in kind.options.values()]
        words = f"{opening} a {kind.noun} that is {' and '.join(attributes)}, in {' and '.join(options)}"
        yield {
            "asin": asin,
            "instruction": words,
            "instruction_attributes": attributes,
            "instruction_options": options,
        }


def written(content: Any) -> str:
    """JSON with a line for each entry, so that an error can name it."""
    if isinstance(content, list):
        return "[\n" + ",\n".join(map(json.dumps, content)) + "\n]\n"
    return "{\n" + ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in content.items()) + "\n}\n"


if __name__ == "__main__":
    for name, content in made().items():
        (Path(__file__).parent / name).write_text(written(content), encoding="utf-8")
