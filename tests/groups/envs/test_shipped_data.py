"""The files that come with the package."""

from __future__ import annotations

import re
from pathlib import Path

from parallel_envs.groups.envs.metamathqa import MetaMathQAConfig, questions_for
from parallel_envs.groups.envs.records import included_file
from parallel_envs.groups.envs.webshop import WebShopConfig
from parallel_envs.groups.envs.webshop.shop import shop_for
from tests.groups.envs import generate_data


def test_the_files_are_what_their_program_writes() -> None:
    for name, text in generate_data.files().items():
        assert Path(included_file(name)).read_text(encoding="utf-8") == text


def test_every_sum_in_the_questions_is_right() -> None:
    questions = questions_for(MetaMathQAConfig(val_share=0.0), training=True)
    assert len(questions) == 180
    assert len({question.original for question in questions}) == 60
    sums = [found for question in questions for found in re.findall(r"(\d+) ([-+*/]) (\d+) = (\d+)", question.response)]
    assert len(sums) > 300
    for left, sign, right, result in sums:
        a, b = int(left), int(right)
        assert {"+": a + b, "-": a - b, "*": a * b, "/": a / b if b else None}[sign] == int(result)


def test_the_shop_has_all_that_is_wanted_of_it() -> None:
    shop = shop_for(WebShopConfig())
    assert (len(shop.products), len(shop.wishes)) == (60, 120)
    for wish in shop.wishes:
        assert set(wish.attributes) <= set(wish.product.attributes)
        assert wish.options is not None
        choices = list(wish.product.options.values())
        assert all(option in values for option, values in zip(wish.options, choices, strict=True))
