"""Makes `arithmetic.jsonl`: questions in the format of MetaMathQA, three variations of each of 60 little stories."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

Record = dict[str, str]
Story = tuple[str, str, int]
"""A question, how it is answered, and the answer."""

NUM_PER_KIND = 12
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


def records(seed: int = 0) -> Iterator[Record]:
    """The entries of the file."""
    draw = random.Random(seed)
    for story in STORIES:
        for _ in range(NUM_PER_KIND):
            yield from variations(draw, story(draw, draw.choice(NAMES), draw.choice(THINGS)))


def variations(draw: random.Random, story: Story) -> Iterator[Record]:
    """The question as it is, in a longer form, and as an equation for an unknown."""
    question, way, answer = story
    unknown = draw.randint(2, 99)
    yield record("GSM_AnsAug", question, question, way, answer)
    yield record("GSM_Rephrased", question, f"Read this, and work out what it asks for. {question}", way, answer)
    asked = f"{question} Call the result r. If r + x = {answer + unknown}, what is x?"
    further = f"{way} So r = {answer}, and x is {answer + unknown} - {answer} = {unknown}."
    yield record("GSM_SV", question, asked, further, unknown)


def record(kind: str, original: str, query: str, way: str, answer: int) -> Record:
    response = f"{way}\nThe answer is: {answer}"
    return {"query": query, "response": response, "type": kind, "original_question": original}


def written() -> str:
    return "".join(f"{json.dumps(entry)}\n" for entry in records())


if __name__ == "__main__":
    (Path(__file__).parent / "arithmetic.jsonl").write_text(written(), encoding="utf-8")
