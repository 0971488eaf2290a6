"""The search and the comparison of texts, apart from the shop."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from parallel_envs.groups.envs.webshop.shop import K1, B, Index, columns_of

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
