from __future__ import annotations

import gc
import json
import math
import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallel_envs.groups.envs.records import DataFileError, included_file
from parallel_envs.groups.envs.webshop import WebShopConfig, WebShopEnv
from parallel_envs.groups.envs.webshop.products import (
    Goal,
    Product,
    Score,
    has_attribute,
    has_option,
    score,
    similarity,
    type_score,
    words_of,
)
from parallel_envs.groups.envs.webshop.shop import (
    INCLUDED,
    K1,
    B,
    Index,
    Records,
    _shop,
    _split,
    columns_of,
    shop_for,
    wishes_for,
)

# ---- playing -------------------------------------------------------------------------------------


def bought(env: WebShopEnv, *actions: str) -> tuple[float, bool]:
    """What a purchase pays, and whether it is all that was wanted; every action must be one that can be done."""
    for action in actions:
        _, reward, terminated, truncated, info = env.step(action)
        assert (info["action_is_valid"], truncated) == (True, False), action
    assert terminated
    return reward, info["success"]


@pytest.mark.parametrize("human_goals", [True, False])
def test_who_knows_what_is_wanted_buys_it(human_goals: bool) -> None:
    env = WebShopEnv(WebShopConfig(human_goals=human_goals))
    asked_for, above = set(), set()
    for seed in range(60):
        state = env.reset(seed, "train" if seed % 6 else "val")
        goal = env.goal
        limit, price = goal.price_upper, goal.product.price
        assert all(option in state for option in goal.options)
        assert f"price lower than {limit:.2f} dollars" in state
        assert limit % 10 == 0
        assert price + 10 < limit <= price + 40  # the larger one of two of the next four
        above.add(limit - price > 20)
        options = [f"click[{option}]" for option in goal.options]
        assert bought(env, *way_to(goal), *options, "click[Buy Now]") == (1.0, True)
        assert set(env.metrics().values()) == {1.0}
        asked_for.add(goal.product.asin)
    assert len(asked_for) > 25
    assert above == {True, False}


def way_to(goal: Goal) -> list[str]:
    return [f"search[{goal.product.name}]", f"click[{goal.product.asin}]"]


def test_who_reads_the_instruction_alone_finds_good_products() -> None:
    """Searches for what is asked, takes the first result in the price, and picks the options that the text names."""
    env, rewards = WebShopEnv(), []
    for seed in range(40):
        wanted = env.reset(seed).split("Instruction: [SEP] ")[1].split(" [SEP] ")[0]
        limit = float(re.findall(r"lower than ([0-9.]+) dollars", wanted)[0])
        page, *_ = env.step(f"search[{wanted.split(', in ')[0]}]")
        found = re.findall(r"(B0\w{8}) \[SEP\] [^$]+ \[SEP\] \$([0-9.]+)", page)
        env.step(f"click[{next(asin for asin, price in found if float(price) <= limit)}]")
        for action in [one for one in env.available_actions() if one[6:-1] in wanted]:
            env.step(action)
        rewards.append(env.step("click[buy now]")[1])
    assert sum(rewards) / len(rewards) > 0.75


def test_pages_lead_to_one_another() -> None:
    env = WebShopEnv(WebShopConfig(page_size=3, show_attrs=True))
    start = env.reset(0)
    assert env.available_actions() == ("search[<content>]",)
    first, *_ = env.step("search[face cream]")
    assert "Page 1 (Total results: " in first
    assert ("click[next >]" in env.available_actions(), "click[< prev]" in env.available_actions()) == (True, False)
    assert env.step("click[< prev]")[4]["action_is_valid"] is False
    assert "Page 2 (Total" in env.step("click[Next >]")[0]
    assert env.step("click[< Prev]")[0] == first
    [asin, *_] = re.findall(r"B0\w{8}", first)
    item, *_ = env.step(f"click[{asin}]")
    assert "Buy Now" in item
    for button in ("description", "features", "reviews", "attributes"):
        assert env.step(f"click[{button}]")[0] != item
        assert env.step("click[< prev]")[0] == item
    assert env.step("click[< prev]")[0] == first
    assert env.step("click[back to search]")[0] == start


def test_a_chosen_option_is_marked_and_can_be_changed() -> None:
    env = WebShopEnv(WebShopConfig(observation_mode="text_rich"))
    env.reset(0)
    for action in ("search[usb c cable]", "click[b0cabl0003]", "click[red]", "click[3 feet]"):
        state, *_ = env.step(action)
    assert state.startswith("You have clicked 3 feet.\nYou have clicked red.\n")
    assert "[clicked button] red [clicked button_]" in state
    state, *_, info = env.step("click[black]")
    assert ("[clicked button] black" in state, "[button] red" in state) == (True, True)
    again = env.step("click[black]")[4]
    assert [told["action_is_effective"] for told in (info, again)] == [True, False]
    assert (again["success"], again["action_is_valid"]) == (False, True)
    state, *_ = env.step("click[< prev]")  # a product that was looked at is marked, too
    assert re.findall(r"\[clicked button\] (\w+)", state) == ["B0CABL0003"]


NOT_THERE = ["search[shoe]", "click[search]", "click[b0cabl0009999]", "click[]", "search[]", "click[buy now", "buy now"]


def test_what_the_page_does_not_have_cannot_be_done() -> None:
    env = WebShopEnv()
    env.reset(0)
    item, *_ = [env.step(way) for way in ("search[usb c cable]", "click[b0cabl0003]")][-1]
    for action in (*NOT_THERE, "click[x] y"):
        info = {"success": False, "action_is_valid": False, "action_is_effective": False}
        assert env.step(action) == (item, 0.0, False, False, info)
    env.reset(0)
    state, *_ = env.step("search[xylophone]")
    assert "Total results: 0" in state
    assert env.available_actions() == ("click[back to search]",)


def test_what_is_told_to_be_available_can_be_done_and_nothing_else_ends_it() -> None:
    env, draw = WebShopEnv(WebShopConfig(page_size=4, max_steps=60)), random.Random(0)
    for seed in range(12):
        env.reset(seed)
        over = False
        while not over:
            action = draw.choice(env.available_actions()).replace("<content>", "light cable shirt")
            _, reward, terminated, truncated, info = env.step(action)
            assert info["action_is_valid"] is True
            assert 0.0 <= reward <= 1.0
            assert terminated == (action == "click[buy now]")
            over = terminated or truncated


# ---- the reward ----------------------------------------------------------------------------------


@pytest.mark.parametrize("reward", ["dense", "sparse"])
def test_parts_that_are_missing_cost_their_share_or_all_if_rewards_are_sparse(reward: Any) -> None:
    env = WebShopEnv(WebShopConfig(reward=reward))
    for seed in range(30):
        env.reset(seed)
        goal = env.goal
        paid, success = bought(env, *way_to(goal), "click[buy now]")  # without any option
        parts = len(goal.attributes) + len(goal.options) + 1
        share = (parts - len(goal.options)) / parts
        assert paid == pytest.approx(share if reward == "dense" else float(not goal.options))
        assert success is (not goal.options)
        assert env.metrics()["task_score"] == pytest.approx(share)
        assert env.metrics()["options_score"] == (0.0 if goal.options else 1.0)


def test_training_and_validation_want_other_products() -> None:
    shop = shop_for(WebShopConfig())
    train, val = ({shop.wanted[number] for number in half} for half in wishes_for(WebShopConfig()))
    assert train.isdisjoint(val)
    assert (len(train), len(val)) == (54, 6)
    assert shop is shop_for(WebShopConfig(page_size=3, reward="sparse"))  # it is made once


# ---- files ---------------------------------------------------------------------------------------

ITEM = {
    "asin": "B000000001",
    "name": "Plain Blue Kettle",
    "full_description": "Boils water.",
    "small_description": ["Made of steel."],
    "pricing": "$1,019.99",
    "images": ["https://example.org/kettle.jpg"],
    "customization_options": {"Color": [{"value": " Sky Blue/Grey ", "image": None}, {"value": "Red"}], "Fit": None},
    "category": "garden",
    "query": "Kettles ",
    "product_category": "Home \u203a Kitchen \u203a Kettles",
    "seller_name": "nobody",
}
WANTED = {
    "asin": "B000000001",
    "instruction": "i want a steel kettle.",
    "instruction_attributes": ["steel"],
    "instruction_options": ["sky blue/grey"],
    "worker_id": "x",
}


def files(folder: Path, **contents: Any) -> WebShopConfig:
    whole = {"items": [ITEM], "attributes": {ITEM["asin"]: {"attributes": ["steel"]}}} | contents
    whole = {"instructions": {ITEM["asin"]: [WANTED]}} | whole
    for name, content in whole.items():
        (folder / f"{name}.json").write_text(json.dumps(content, indent=0), encoding="utf-8")
    paths = [str(folder / f"{name}.json") for name in ("items", "attributes", "instructions")]
    return WebShopConfig(file_path=paths[0], attributes_path=paths[1], instructions_path=paths[2])


def test_files_in_the_format_of_webshop_are_read(tmp_path: Path) -> None:
    left_out: list[dict[str, Any]] = [{"name": "again"}, {"asin": "B0000000012"}, {"asin": "nan"}]
    others: list[dict[str, Any]] = [
        {"asin": "B000000002", "pricing": "$5 - $10.50", "small_description": "One text.", "name": "Mug"},
        {"asin": "B3", "pricing": None, "query": None},
        {"asin": "B4", "pricing": ["$9.5"]},
        {"asin": "B5", "pricing": 12.5, "full_description": math.nan, "average_rating": 4.5},
        {"asin": "B6", "pricing": math.nan, "average_rating": math.nan},
    ]
    config = files(tmp_path, items=[ITEM, *(ITEM | change for change in left_out + others)])
    kettle, mug, third, listed, numbered, unknown = shop_for(config).products
    assert (kettle.name, kettle.options) == ("Plain Blue Kettle", {"color": ("sky blue | grey", "red")})
    assert (kettle.price, kettle.price_tag) == (1019.99, "$1019.99")
    assert (kettle.query, kettle.attributes, kettle.rating) == ("kettles", ("steel",), "N.A.")
    assert (mug.price, mug.price_tag, mug.features) == (7.75, "$5.0 to $10.5", ("One text.",))
    assert (third.price, third.query, listed.price) == (100.0, "", 9.5)
    assert (numbered.price, numbered.description, numbered.rating) == (12.5, "", "4.5")
    assert (unknown.price, unknown.rating) == (100.0, "N.A.")
    env = WebShopEnv(config)
    assert "Instruction: [SEP] i want a steel kettle [SEP]" in env.reset(0)  # no limit above 980 dollars
    way = ("search[blue kettle]", "click[b000000001]", "click[sky blue | grey]", "click[buy now]")
    assert bought(env, *way) == (1.0, True)


def test_fewer_products_and_instructions_can_be_asked_for(tmp_path: Path) -> None:
    items, wanted = ([base | {"asin": f"A{n}"} for n in range(6)] for base in (ITEM, WANTED))
    paths = files(tmp_path, items=items, attributes={}, instructions=wanted)
    config = replace(paths, attributes_path=None, num_products=4, limit_goals=3, val_share=0.0)
    shop = shop_for(config)
    assert [product.asin for product in shop.products] == ["A0", "A1", "A2", "A3"]
    wishes = [shop.wishes[number].product.asin for number in wishes_for(config)[0]]
    assert wishes == ["A0", "A1", "A2"]


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ({"items": [ITEM, {"asin": "B1"}]}, r"items\.json, line 30: the field `name` is missing"),
        ({"items": [ITEM | {"name": 5}]}, r"items\.json, line 2: `name` is 5, where a text is wanted"),
        ({"items": [ITEM | {"customization_options": {"size": "big"}}]}, "`customization_options.size` is not a list"),
        ({"items": [ITEM | {"small_description": [1]}]}, "`small_description` is .* where a list of texts"),
        ({"items": []}, "there are no products"),
        ({"attributes": {"B000000001": {"attributes": "steel"}}}, r"attributes\.json, line 2: `attributes` is"),
        ({"instructions": {"B000000001": WANTED}}, r"instructions\.json, line 2: this is not a list of instructions"),
        ({"instructions": {"B9": [WANTED]}}, "no instruction is about a product that is there"),
        ({"instructions": {"B000000001": [WANTED | {"instruction_options": 3}]}}, "`instruction_options` is 3"),
    ],
)
def test_broken_files_are_named(tmp_path: Path, broken: dict[str, Any], words: str) -> None:
    with pytest.raises(DataFileError, match=words):
        WebShopEnv(files(tmp_path, **broken))


# ---- large shops ------------------------------------------------------------------------------------------------


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The fields of a config by which the shipped shop is one that is worth sharing."""
    monkeypatch.setattr("parallel_envs.groups.envs.webshop.shop._WORTH_MAPPING", 0)
    names = ("file_path", "attributes_path", "instructions_path")
    yield {**dict(zip(names, map(included_file, INCLUDED), strict=True)), "cache_dir": str(tmp_path / "cache")}
    _split.cache_clear()
    _shop.cache_clear()  # a shop is kept, and with it the files that are mapped
    gc.collect()


def walked(env: WebShopEnv) -> list[Any]:
    """What is seen and paid on some ways through a shop."""
    seen: list[Any] = []
    for seed in range(8):
        seen += [env.reset(seed, "train" if seed % 2 else "val"), env.goal]
        words = env.goal.product.name.lower()
        seen.append(env.step(f"search[{words}]"))
        for _ in range(4):
            clicks = [one for one in env.available_actions() if one.startswith("click[")]
            seen.append(env.step(clicks[-1 - len(words) % len(clicks)] if clicks else "search[lamp]"))
            if seen[-1][2]:
                break
    return seen


@pytest.mark.parametrize("human_goals", [True, False])
def test_a_shop_on_disk_is_the_same_to_the_bit_and_is_only_read_then(
    large: dict[str, Any], human_goals: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"human_goals": human_goals, "limit_goals": 50, "num_products": 55}
    cache = Path(large["cache_dir"])
    mapped = WebShopEnv(WebShopConfig(**large, **options))
    [folder] = [one for one in cache.iterdir() if one.is_dir()]
    assert {one.name for one in cache.iterdir()} == {folder.name, f"{folder.name}.lock"}
    own = {**large, "cache_dir": str(Path(large["file_path"]) / "cache")}  # there can be no such folder
    in_memory = WebShopEnv(WebShopConfig(**own, **options))
    one, other = (shop_for(env.config) for env in (mapped, in_memory))
    assert (type(one.products), type(other.products)) == (Records, tuple)
    assert (list(one.products), list(one.wishes)) == (list(other.products), list(other.wishes))
    columns, others = (
        {name: (column.dtype, column.tobytes()) for name, column in shop.index.columns.items()} for shop in (one, other)
    )
    assert columns == others
    assert walked(mapped) == walked(in_memory)
    _shop.cache_clear()  # as another process
    monkeypatch.setattr("parallel_envs.groups.envs.webshop.shop.subprocess", None)
    again = shop_for(mapped.config)
    assert isinstance(again.products, Records)
    with pytest.raises(ValueError, match="read-only"):
        again.index.columns["times"][0] = 1.0


def test_files_that_are_broken_are_told_as_ever(large: dict[str, Any], tmp_path: Path) -> None:
    broken = tmp_path / "items.json"
    broken.write_text('[{"asin": 3}]')
    with pytest.raises(DataFileError, match=r"items.json, line 1: `asin` is 3"):
        WebShopEnv(WebShopConfig(**{**large, "file_path": str(broken)}))
    assert [one.suffix for one in Path(large["cache_dir"]).iterdir()] == [".lock"]


# ---- the search and the comparison of texts, apart from the shop -----------------------------------------------------

WORDS = st.sampled_from(["red", "blue", "kettle", "kettles", "glass", "steel", "the", "for"])
TEXTS = st.lists(WORDS, max_size=8).map(" ".join)


def bm25(query: str, documents: list[str], number: int) -> float:
    """The formula, written out for one document."""
    counted = [Counter(words_of(document)) for document in documents]
    mean = max(sum(count.total() for count in counted) / len(counted), 1.0)
    total = 0.0
    for word in words_of(query):
        having = sum(word in count for count in counted)
        if having:
            weight = math.log(1 + (len(documents) - having + 0.5) / (having + 0.5))
            times, length = counted[number][word], counted[number].total()
            total += weight * times * (K1 + 1) / (times + K1 * (1 - B + B * length / mean)) if times else 0.0
    return total


@given(TEXTS, st.lists(TEXTS, min_size=1, max_size=6))
def test_scores_are_those_of_the_formula(query: str, documents: list[str]) -> None:
    index = Index(columns_of(documents))
    assert index.scores(query) == pytest.approx([bm25(query, documents, n) for n in range(len(documents))], rel=1e-4)


@given(TEXTS, st.lists(TEXTS, min_size=1, max_size=6), st.integers(1, 6))
def test_the_best_come_first_and_of_equals_the_earlier(query: str, documents: list[str], most: int) -> None:
    index = Index(columns_of(documents))
    scores = index.scores(query)
    having = [n for n in range(len(documents)) if scores[n] > 0]
    assert index.search(query, most) == tuple(sorted(having, key=lambda n: (-scores[n], n))[:most])


@pytest.mark.parametrize(
    ("first", "second", "likeness"),
    [
        ("long sleeve", "Sleeve, long", 100.0),
        ("long sleeve", "long sleeve shirt", 100.0),
        ("gluten free", "gluten-free snack", 100.0),
        ("", "long", 0.0),
        ("abcd", "abce", 75.0),  # 2 * 3 / 8
        ("red kettle", "red kettles", 200 * 10 / 21),
    ],
)
def test_likeness_of_texts(first: str, second: str, likeness: float) -> None:
    assert similarity(first, second) == similarity(second, first) == pytest.approx(likeness)


def test_sizes_are_compared_to_the_letter_and_others_nearly() -> None:
    size, flavor, color = {"size": "large"}, {"flavor": "sea salts"}, {"color": "heather navy"}
    has = [(size, "large"), (flavor, "sea salt"), (color, "navy marl")]
    has_not: list[Any] = [(size, "x large"), (color, "heather grey"), ({"color": "red"}, "green"), ({}, "green")]
    assert [has_option(*one) for one in (*has, *has_not)] == [True] * 3 + [False] * 4


def kettle(**fields: Any) -> Product:
    path = "Home \u203a Kitchen"
    return replace(
        Product("K", "steel water kettle", "", (), 1.0, "$1", {}, (), "garden", "kettles", path, "N.A."), **fields
    )


def test_attributes_are_those_of_the_list_or_told_in_the_texts() -> None:
    listed = kettle(attributes=("gluten-free", "low sodium"))
    assert (has_attribute(listed, "gluten free"), has_attribute(listed, "high protein")) == (True, False)
    for told in (
        {"description": "Rich in High Protein."},
        {"name": "High Protein kettle"},
        {"features": ("a high", "protein")},
    ):
        assert has_attribute(kettle(**told), "high protein")


def test_the_score_is_the_share_of_what_matches() -> None:
    product = kettle(attributes=("steel", "quiet"), price=30.0)
    goal = Goal(product, "", ("steel", "cordless"), ("red", "large"), price_upper=40.0)
    assert score(product, {"color": "red"}, goal) == Score(3 / 5, 1.0, 0.5, 0.5, 1.0)
    assert score(product, {"color": "red", "size": "large"}, goal).total == pytest.approx(4 / 5)
    assert score(replace(product, price=40.5), {"color": "red"}, goal) == Score(2 / 5, 1.0, 0.5, 0.5, 0.0)
    assert score(kettle(name="teapot"), {"color": "red"}, goal).total == 0.0


def test_a_share_of_the_name_decides_where_query_and_category_differ() -> None:
    words = [f"word{n}" for n in range(20)]
    wanted = kettle(name=" ".join(words), query="a", product_category="X")
    others = [kettle(name=" ".join([*words[:n], "other"]), query="b", product_category="Y") for n in (0, 1, 2, 4, 5)]
    assert [type_score(other, wanted) for other in others] == [0.0, 0.1, 0.5, 0.5, 1.0]
    wanted = replace(wanted, product_category="Home \u203a Kitchen \u203a Kettles")
    for path, worth in {"Kettles \u203a Home": 1.0, "Home \u203a Garden": 0.5}.items():
        assert type_score(kettle(name="word0 word1", query="b", product_category=path), wanted) == worth
