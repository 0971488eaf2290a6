from __future__ import annotations

import gc
import json
import math
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parallel_envs.groups.envs.records import DataFileError, included_file
from parallel_envs.groups.envs.webshop import WebShopConfig, WebShopEnv
from parallel_envs.groups.envs.webshop.shop import INCLUDED, Records, _shop, _split, shop_for, wishes_for

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
    asked_for = set()
    for seed in range(60):
        for mode in ("train", "val"):
            state = env.reset(seed, mode)
            goal = env.goal
            assert all(option in state for option in goal.options)
            options = [f"click[{option}]" for option in goal.options]
            way = [f"search[{goal.product.name}]", f"click[{goal.product.asin}]", *options, "click[Buy Now]"]
            assert bought(env, *way) == (1.0, True)
            assert set(env.metrics().values()) == {1.0}
            asked_for.add(goal.product.asin)
    assert len(asked_for) > 30


def test_who_reads_the_instruction_alone_finds_good_products() -> None:
    """Searches for what is asked, takes the first result in the price, and picks the options that the text names."""
    env, rewards = WebShopEnv(), []
    for seed in range(60):
        state = env.reset(seed)
        wanted = state.split("Instruction: [SEP] ")[1].split(" [SEP] ")[0]
        limit = float(re.findall(r"lower than ([0-9.]+) dollars", wanted)[0])
        page, *_ = env.step(f"search[{wanted.split(', in ')[0]}]")
        found = re.findall(r"(B0\w{8}) \[SEP\] [^$]+ \[SEP\] \$([0-9.]+)", page)
        env.step(f"click[{next(asin for asin, price in found if float(price) <= limit)}]")
        for action in env.available_actions():
            if action[6:-1] in wanted:
                env.step(action)
        rewards.append(env.step("click[buy now]")[1])
    assert sum(rewards) / len(rewards) > 0.75
    assert rewards.count(1.0) >= 15


def test_pages_lead_to_one_another() -> None:
    env = WebShopEnv(WebShopConfig(page_size=3, show_attrs=True))
    start = env.reset(0)
    assert env.available_actions() == ("search[<content>]",)
    first, *_ = env.step("search[face cream]")
    assert "Page 1 (Total results: " in first
    assert "click[next >]" in env.available_actions()
    assert "click[< prev]" not in env.available_actions()
    assert env.step("click[< prev]")[4]["action_is_valid"] is False
    second, *_ = env.step("click[Next >]")
    assert "Page 2 (Total" in second
    assert env.step("click[< Prev]")[0] == first
    asin = re.findall(r"B0\w{8}", first)[0]
    item, *_ = env.step(f"click[{asin}]")
    assert "Buy Now" in item
    for button in ("description", "features", "reviews", "attributes"):
        more, *_ = env.step(f"click[{button}]")
        assert more != item
        assert env.step("click[< prev]")[0] == item
    assert env.step("click[< prev]")[0] == first
    assert env.step("click[back to search]")[0] == start


@pytest.mark.parametrize("page_size", [4, 5])
def test_the_last_page_of_results_leads_no_further(page_size: int) -> None:
    env = WebShopEnv(WebShopConfig(page_size=page_size, num_results=10))
    env.reset(0)
    env.step("search[shirt]")
    pages = 1
    while "click[next >]" in env.available_actions():
        env.step("click[next >]")
        pages += 1
    assert pages == -(-10 // page_size)
    assert env.step("click[next >]")[4]["action_is_valid"] is False
    env.reset(0)
    state, *_ = env.step("search[xylophone]")
    assert "Total results: 0" in state
    assert env.available_actions() == ("click[back to search]",)


def test_a_chosen_option_is_marked_and_can_be_changed() -> None:
    env = WebShopEnv(WebShopConfig(observation_mode="text_rich"))
    env.reset(0)
    for action in ("search[usb c cable]", "click[b0cabl0003]", "click[red]", "click[3 feet]"):
        state, *_ = env.step(action)
    assert state.startswith("You have clicked 3 feet.\nYou have clicked red.\n")
    assert "[clicked button] red [clicked button_]" in state
    state, _, _, _, info = env.step("click[black]")
    assert info["action_is_effective"] is True
    assert "[clicked button] black" in state
    assert "[button] red" in state
    assert env.step("click[black]")[4] == {"success": False, "action_is_valid": True, "action_is_effective": False}
    state, *_ = env.step("click[< prev]")  # a product that was looked at is marked, too
    assert re.findall(r"\[clicked button\] (\w+)", state) == ["B0CABL0003"]


NOT_THERE = ["search[shoe]", "click[search]", "click[b0cabl0009999]", "click[]", "search[]", "click[buy now", "buy now"]


@pytest.mark.parametrize("action", [*NOT_THERE, "click[x] y"])
def test_what_the_page_does_not_have_cannot_be_done(action: str) -> None:
    env = WebShopEnv()
    env.reset(0)
    item, *_ = [env.step(way) for way in ("search[usb c cable]", "click[b0cabl0003]")][-1]
    state, reward, terminated, _, info = env.step(action)
    assert (state, reward, terminated) == (item, 0.0, False)
    assert info == {"success": False, "action_is_valid": False, "action_is_effective": False}


def test_what_is_told_to_be_available_can_be_done_and_nothing_else_ends_it() -> None:
    env = WebShopEnv(WebShopConfig(page_size=4, max_steps=60))
    draw = random.Random(0)
    for seed in range(25):
        env.reset(seed)
        over = False
        while not over:
            action = draw.choice(env.available_actions()).replace("<content>", "light cable shirt")
            _, reward, terminated, truncated, info = env.step(action)
            assert info["action_is_valid"] is True
            assert 0.0 <= reward <= 1.0
            assert terminated == (action == "click[buy now]")
            over = terminated or truncated


@settings(max_examples=150)
@given(
    st.lists(st.text(max_size=20) | st.text("]) [(searchlik", max_size=30).map(lambda t: f"search[{t}]"), max_size=4)
)
def test_any_texts_are_done_or_refused(actions: list[str]) -> None:
    env = WebShopEnv(WebShopConfig(max_steps=10))
    env.reset(0)
    for action in actions:
        assert env.step(action)[2] is False


# ---- the reward ----------------------------------------------------------------------------------


def test_parts_that_are_missing_cost_their_share() -> None:
    env = WebShopEnv()
    for seed in range(30):
        env.reset(seed)
        goal = env.goal
        wanted = [f"search[{goal.product.name}]", f"click[{goal.product.asin}]"]
        reward, success = bought(env, *wanted, "click[buy now]")  # without any option
        parts = len(goal.attributes) + len(goal.options) + 1
        assert reward == pytest.approx((parts - len(goal.options)) / parts)
        assert success is (not goal.options)
        assert env.metrics()["options_score"] == (0.0 if goal.options else 1.0)


def test_a_product_of_another_kind_is_worth_little() -> None:
    env = WebShopEnv(WebShopConfig(val_share=0.0))
    for seed in range(40):
        env.reset(seed)
        other = "shoe" if env.goal.product.query != "running shoes" else "lamp"
        reward, success = bought(env, f"search[{other}]", env_first(env, f"search[{other}]"), "click[buy now]")
        assert reward <= 0.3
        assert success is False


def env_first(env: WebShopEnv, search: str) -> str:
    """The action that leads to the first product that a search finds."""
    found = shop_for(env.config).index.search(search[7:-1], 1)
    return f"click[{shop_for(env.config).products[found[0]].asin}]"


def test_sparse_rewards_are_all_or_nothing() -> None:
    env = WebShopEnv(WebShopConfig(reward="sparse"))
    for seed in range(10):
        env.reset(seed)
        goal = env.goal
        way = [f"search[{goal.product.name}]", f"click[{goal.product.asin}]"]
        assert bought(env, *way, "click[buy now]") == (0.0, False)
        assert 0.0 < env.metrics()["task_score"] < 1.0
        env.reset(seed)
        assert bought(env, *way, *[f"click[{option}]" for option in goal.options], "click[buy now]") == (1.0, True)


def test_prices_have_a_limit_that_the_instruction_tells() -> None:
    env = WebShopEnv()
    above = set()
    for seed in range(60):
        state = env.reset(seed)
        limit, price = env.goal.price_upper, env.goal.product.price
        assert f"price lower than {limit:.2f} dollars" in state
        assert limit % 10 == 0
        assert price + 10 < limit <= price + 40  # the larger one of two of the next four
        above.add(limit - price > 20)
    assert above == {True, False}


def test_training_and_validation_want_other_products() -> None:
    shop = shop_for(WebShopConfig())
    wanted = {
        mode: {shop.wanted[number] for number in wishes_for(WebShopConfig(), training=mode == "train")}
        for mode in ("train", "val")
    }
    assert wanted["train"].isdisjoint(wanted["val"])
    assert len(wanted["val"]) == 6
    assert len(wanted["train"]) == 54
    assert shop_for(WebShopConfig()) is shop_for(WebShopConfig(page_size=3, reward="sparse"))  # it is made once


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


def files(folder: Path, items: Any = None, attributes: Any = None, instructions: Any = None) -> WebShopConfig:
    contents = {
        "items.json": [ITEM] if items is None else items,
        "attributes.json": {ITEM["asin"]: {"attributes": ["steel"]}} if attributes is None else attributes,
        "instructions.json": {ITEM["asin"]: [WANTED]} if instructions is None else instructions,
    }
    for name, content in contents.items():
        (folder / name).write_text(json.dumps(content, indent=0), encoding="utf-8")
    paths = [str(folder / name) for name in contents]
    return WebShopConfig(file_path=paths[0], attributes_path=paths[1], instructions_path=paths[2])


def test_files_in_the_format_of_webshop_are_read(tmp_path: Path) -> None:
    other = ITEM | {"asin": "B000000002", "pricing": "$5 - $10.50", "small_description": "One text.", "name": "Mug"}
    left_out = [ITEM | {"name": "again"}, ITEM | {"asin": "B0000000012"}, ITEM | {"asin": "nan"}]
    config = files(
        tmp_path,
        [
            ITEM,
            *left_out,
            other,
            ITEM | {"asin": "B3", "pricing": None, "query": None},
            ITEM | {"asin": "B4", "pricing": ["$9.5"]},
            ITEM | {"asin": "B5", "pricing": 12.5, "full_description": math.nan, "average_rating": 4.5},
            ITEM | {"asin": "B6", "pricing": math.nan, "average_rating": math.nan},
        ],
    )
    kettle, mug, third, listed, numbered, unknown = shop_for(config).products
    assert kettle.name == "Plain Blue Kettle"
    assert (kettle.price, kettle.price_tag) == (1019.99, "$1019.99")
    assert kettle.options == {"color": ("sky blue | grey", "red")}
    assert (kettle.query, kettle.attributes, kettle.rating) == ("kettles", ("steel",), "N.A.")
    assert (mug.price, mug.price_tag, mug.features) == (7.75, "$5.0 to $10.5", ("One text.",))
    assert (third.price, third.query) == (100.0, "")
    assert listed.price == 9.5
    assert (numbered.price, numbered.description, numbered.rating) == (12.5, "", "4.5")
    assert (unknown.price, unknown.rating) == (100.0, "N.A.")
    env = WebShopEnv(config)
    assert "Instruction: [SEP] i want a steel kettle [SEP]" in env.reset(0)  # no limit above 980 dollars
    way = ("search[blue kettle]", "click[b000000001]", "click[sky blue | grey]", "click[buy now]")
    assert bought(env, *way) == (1.0, True)


def test_fewer_products_and_instructions_can_be_asked_for(tmp_path: Path) -> None:
    items = [ITEM | {"asin": f"A{n}"} for n in range(6)]
    wanted = [WANTED | {"asin": f"A{n}"} for n in range(6)]
    paths = files(tmp_path, items, {}, wanted)
    config = WebShopConfig(
        file_path=paths.file_path,
        instructions_path=paths.instructions_path,
        num_products=4,
        limit_goals=3,
        val_share=0.0,
    )
    assert [product.asin for product in shop_for(config).products] == ["A0", "A1", "A2", "A3"]
    assert [shop_for(config).wishes[number].product.asin for number in wishes_for(config, training=True)] == [
        "A0",
        "A1",
        "A2",
    ]


def test_of_many_instructions_the_broken_one_is_named_with_its_line(tmp_path: Path) -> None:
    wanted = {"B000000001": [WANTED, WANTED, WANTED, {"instruction": "?"}]}
    paths = files(tmp_path, instructions=wanted)
    assert paths.instructions_path is not None
    lines = Path(paths.instructions_path).read_text(encoding="utf-8").split("\n")
    with pytest.raises(DataFileError, match="the field `instruction_attributes` is missing") as caught:
        WebShopEnv(paths)
    begins = next(number for number in range(len(lines) - 1, 0, -1) if lines[number - 1].strip() == "{")
    assert (caught.value.line, lines[begins].strip()) == (begins, '"instruction": "?"')
    assert begins > 20


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
        ({"instructions": {"B000000001": [{"instruction": "?"}]}}, "the field `instruction_attributes` is missing"),
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
    for seed, mode in [(seed, mode) for seed in range(6) for mode in ("train", "val")]:
        seen += [env.reset(seed, mode), env.goal]
        words = env.goal.product.name.lower()
        seen.append(env.step(f"search[{words}]"))
        for _ in range(4):
            clicks = [one for one in env.available_actions() if one.startswith("click[")]
            seen.append(env.step(clicks[-1 - len(words) % len(clicks)] if clicks else "search[lamp]"))
            if seen[-1][2]:
                break
    return seen


@pytest.mark.parametrize("human_goals", [True, False])
def test_a_shop_on_disk_is_the_same_to_the_bit(large: dict[str, Any], human_goals: bool) -> None:
    options: dict[str, Any] = {"human_goals": human_goals, "limit_goals": 50, "num_products": 55}
    cache = Path(large["cache_dir"])
    mapped = WebShopEnv(WebShopConfig(**large, **options))
    assert isinstance(shop_for(mapped.config).products, Records)
    [folder] = [one for one in cache.iterdir() if one.is_dir()]
    assert {one.name for one in cache.iterdir()} == {folder.name, f"{folder.name}.lock"}
    own = {**large, "cache_dir": str(Path(large["file_path"]) / "cache")}  # there can be no such folder
    in_memory = WebShopEnv(WebShopConfig(**own, **options))
    assert isinstance(shop_for(in_memory.config).products, tuple)
    assert list(shop_for(mapped.config).products) == list(shop_for(in_memory.config).products)
    assert list(shop_for(mapped.config).wishes) == list(shop_for(in_memory.config).wishes)
    one, other = (shop_for(env.config).index.columns for env in (mapped, in_memory))
    assert {name: (column.dtype, column.tobytes()) for name, column in one.items()} == {
        name: (column.dtype, column.tobytes()) for name, column in other.items()
    }
    assert walked(mapped) == walked(in_memory)


def test_a_shop_is_written_once_and_only_read_then(large: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    config = WebShopConfig(**large, num_products=50)
    shop_for(config)
    _shop.cache_clear()  # as another process
    monkeypatch.setattr("parallel_envs.groups.envs.webshop.shop.subprocess", None)
    again = shop_for(config)
    assert isinstance(again.products, Records)
    with pytest.raises(ValueError, match="read-only"):
        again.index.columns["times"][0] = 1.0


def test_files_that_are_broken_are_told_as_ever(large: dict[str, Any], tmp_path: Path) -> None:
    broken = tmp_path / "items.json"
    broken.write_text('[{"asin": 3}]')
    with pytest.raises(DataFileError, match=r"items.json, line 1: `asin` is 3"):
        WebShopEnv(WebShopConfig(**{**large, "file_path": str(broken)}))
    assert [one.suffix for one in Path(large["cache_dir"]).iterdir()] == [".lock"]
