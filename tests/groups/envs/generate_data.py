"""Program that makes the data files of the package: questions in MetaMathQA's format and a shop in WebShop's format.

    python -m tests.groups.envs.generate_data

writes `arithmetic.jsonl`, three variations of each of 60 short stories, and the three files of the shop: products,
attributes and instructions. All of it is invented. `test_shipped_data` compares the files with what this writes.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parallel_envs.groups.envs.records import included_file

FOLDER = Path(included_file(""))

# ---- arithmetic.jsonl -----------------------------------------------------------------------------------------------

Story = tuple[str, str, int]
"""A question, the way to its answer, and the answer."""

STORIES_PER_KIND = 12
NAMES = ("Ada", "Ben", "Chiara", "Dmitri", "Emre", "Farah", "Goro", "Hana", "Ines", "Jonas")
THINGS = ("apples", "stamps", "marbles", "shells", "postcards", "buttons", "pencils", "beads")


def buying(draw: random.Random, name: str, things: str) -> Story:
    many, price = draw.randint(2, 9), draw.randint(2, 12)
    paid = many * price + draw.randint(1, 20)
    question = f"{name} buys {many} {things} at {price} dollars each and pays with {paid} dollars. What is the change?"
    way = f"The {things} cost {many} * {price} = {many * price} dollars. "
    return question, f"{way}The change is {paid} - {many * price} = {paid - many * price}.", paid - many * price


def sharing(draw: random.Random, name: str, things: str) -> Story:
    friends, each = draw.randint(2, 8), draw.randint(3, 15)
    left = draw.randint(0, friends - 1)
    total = friends * each + left
    question = f"{name} shares {total} {things} evenly among {friends} friends. How many {things} are left over?"
    way = f"Each friend gets {each}, which takes {friends} * {each} = {friends * each} {things}. "
    return question, f"{way}What is left is {total} - {friends * each} = {left}.", left


def saving(draw: random.Random, name: str, things: str) -> Story:
    start, weekly, weeks = draw.randint(5, 60), draw.randint(2, 15), draw.randint(3, 12)
    question = f"{name} has {start} {things} and gets {weekly} more every week. How many are there after {weeks} weeks?"
    way = f"In {weeks} weeks come {weeks} * {weekly} = {weeks * weekly} {things}. "
    return question, f"{way}That makes {start} + {weeks * weekly} = {start + weeks * weekly}.", start + weeks * weekly


def halving(draw: random.Random, name: str, things: str) -> Story:
    half = draw.randint(10, 60)
    given = draw.randint(1, half - 1)
    question = f"{name} gives away half of {2 * half} {things}, and then {given} of the rest. How many {things} remain?"
    way = f"Half of them are {2 * half} / 2 = {half} {things}. "
    return question, f"{way}Then remain {half} - {given} = {half - given}.", half - given


def walking(draw: random.Random, name: str, things: str) -> Story:
    pace, hours, more = draw.randint(3, 6), draw.randint(2, 7), draw.randint(1, 9)
    question = (
        f"Looking for {things}, {name} walks {hours} hours at {pace} miles an hour and then {more} miles. "
        f"How many miles is that?"
    )
    way = f"The first part is {hours} * {pace} = {hours * pace} miles. "
    return question, f"{way}All together it is {hours * pace} + {more} = {hours * pace + more}.", hours * pace + more


STORIES: tuple[Callable[[random.Random, str, str], Story], ...] = (buying, sharing, saving, halving, walking)


def questions(seed: int = 0) -> Iterator[dict[str, str]]:
    """Yield the entries of the file."""
    draw = random.Random(seed)
    for story in STORIES:
        for _ in range(STORIES_PER_KIND):
            yield from variations(draw, story(draw, draw.choice(NAMES), draw.choice(THINGS)))


def variations(draw: random.Random, story: Story) -> Iterator[dict[str, str]]:
    """Yield the question as it is, in a longer form, and as an equation for an unknown."""
    question, way, answer = story
    unknown = draw.randint(2, 99)
    yield record("GSM_AnsAug", question, question, way, answer)
    yield record("GSM_Rephrased", question, f"Read this, and work out what it asks for. {question}", way, answer)
    asked = f"{question} Call the result r. If r + x = {answer + unknown}, what is x?"
    further = f"{way} So r = {answer}, and x is {answer + unknown} - {answer} = {unknown}."
    yield record("GSM_SV", question, asked, further, unknown)


def record(kind: str, original: str, query: str, way: str, answer: int) -> dict[str, str]:
    response = f"{way}\nThe answer is: {answer}"
    return {"query": query, "response": response, "type": kind, "original_question": original}


# ---- the shop -------------------------------------------------------------------------------------------------------

PRODUCTS_PER_KIND = 10
BRANDS = ("Norvik", "Peralta", "Oakmere", "Lumiva", "Tansu", "Brightwell", "Kestrel", "Halden")


@dataclass(frozen=True)
class Kind:
    """A kind of products, and how they differ. The attributes, and the choices of an option, are divided by commas."""

    code: str
    noun: str
    category: str
    path: str
    listed: str
    choices: Mapping[str, str]
    cheapest: int
    dearest: int

    @property
    def attributes(self) -> list[str]:
        return self.listed.split(", ")

    @property
    def options(self) -> dict[str, list[str]]:
        return {name: values.split(", ") for name, values in self.choices.items()}


SHIRT = "machine washable, long sleeve, slim fit, cotton blend, wrinkle free"
SHIRTS = {"size": "small, medium, large, x-large", "color": "navy, white, olive, burgundy"}
SHOE = "rubber sole, arch support, light weight, water resistant, memory foam"
SHOES = {"size": "7, 8, 9, 10, 11", "color": "black, grey, coral, teal"}
LAMP = "easy assemble, energy efficient, dimmable light, solid wood, touch control"
LAMPS = {"color": "black, ivory, bronze"}
SNACK = "gluten free, low sodium, non gmo, high protein, resealable bag"
SNACKS = {
    "size": "8 ounce (pack of 1), 8 ounce (pack of 4), 16 ounce (pack of 2)",
    "flavor": "cherry, cocoa, sea salt",
}
CREAMS = {"size": "1 fl oz, 3.4 fl oz"}
CREAM = "fragrance free, cruelty free, dry skin, hyaluronic acid, anti aging"
CABLE = "fast charging, gold plated, nylon braided, high speed, data transfer"
CABLES = {"size": "3 feet, 6 feet, 10 feet", "color": "black, red, silver"}
KINDS = (
    Kind("SHRT", "button down shirt", "fashion", "Clothing \u203a Men \u203a Shirts", SHIRT, SHIRTS, 15, 60),
    Kind("SHOE", "running shoes", "fashion", "Clothing \u203a Shoes \u203a Athletic", SHOE, SHOES, 30, 140),
    Kind("LAMP", "table lamp", "garden", "Home \u203a Lighting \u203a Lamps", LAMP, LAMPS, 18, 95),
    Kind("SNAK", "trail mix", "grocery", "Grocery \u203a Snacks \u203a Nuts", SNACK, SNACKS, 6, 45),
    Kind("CREM", "face cream", "beauty", "Beauty \u203a Skin Care \u203a Face", CREAM, CREAMS, 8, 70),
    Kind("CABL", "usb c cable", "electronics", "Electronics \u203a Accessories \u203a Cables", CABLE, CABLES, 5, 30),
)


def shop() -> dict[str, Any]:
    """Return the content of the three files, by their names."""
    draw = random.Random(0)
    items: list[dict[str, Any]] = []
    attributes: dict[str, dict[str, Any]] = {}
    instructions: dict[str, list[dict[str, Any]]] = {}
    for kind in KINDS:
        for number in range(PRODUCTS_PER_KIND):
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


def item(draw: random.Random, kind: Kind, asin: str, own: list[str]) -> dict[str, Any]:
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


def asked(draw: random.Random, kind: Kind, asin: str, own: list[str]) -> Iterator[dict[str, Any]]:
    """Yield two instructions, each with some attributes and a choice of every option."""
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


# ---- files ----------------------------------------------------------------------------------------------------------


def json_with_lines(content: Any) -> str:
    """Return JSON with a line for each entry, so that an error can name it."""
    if isinstance(content, list):
        return "[\n" + ",\n".join(map(json.dumps, content)) + "\n]\n"
    return "{\n" + ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in content.items()) + "\n}\n"


def files() -> dict[str, str]:
    """Return the text of each file, by its name."""
    texts = {name: json_with_lines(content) for name, content in shop().items()}
    return {"arithmetic.jsonl": "".join(f"{json.dumps(entry)}\n" for entry in questions()), **texts}


if __name__ == "__main__":
    for name, text in files().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
