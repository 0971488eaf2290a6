from __future__ import annotations

import json
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallel_envs.choices import NumberUse
from parallel_envs.groups.envs.countdown import (
    BadExpression,
    CountdownConfig,
    CountdownEnv,
    read_expression,
    result_ranges,
)
from parallel_envs.groups.envs.records import DataFileError
from tests.groups.envs.solvers import combined

# ---- arithmetic ----------------------------------------------------------------------------------

Tree = Any


def trees() -> st.SearchStrategy[Tree]:
    leaves: st.SearchStrategy[Tree] = st.integers(0, 999)
    return st.recursive(leaves, lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner), max_leaves=10)


def value_of(tree: Tree) -> Fraction:
    """By the tree's own shape. Raises ZeroDivisionError."""
    if isinstance(tree, int):
        return Fraction(tree)
    left, sign, right = value_of(tree[0]), tree[1], value_of(tree[2])
    return {"+": lambda: left + right, "-": lambda: left - right, "*": lambda: left * right, "/": lambda: left / right}[
        sign
    ]()


def words_of(tree: Tree, space: str) -> str:
    return (
        str(tree)
        if isinstance(tree, int)
        else f"({words_of(tree[0], space)}{space}{tree[1]}{space}{words_of(tree[2], space)})"
    )


def leaves_of(tree: Tree) -> list[int]:
    return [tree] if isinstance(tree, int) else leaves_of(tree[0]) + leaves_of(tree[2])


@given(trees(), st.sampled_from(["", " ", "  \n"]))
def test_expressions_have_the_value_of_their_tree(tree: Tree, space: str) -> None:
    try:
        value = value_of(tree)
    except ZeroDivisionError:
        with pytest.raises(BadExpression, match="divides by zero"):
            read_expression(words_of(tree, space))
        return
    read = read_expression(words_of(tree, space))
    assert read.value == value
    assert list(read.numbers) == leaves_of(tree)


@given(st.lists(st.sampled_from([*"0123456789+-*/()= .", "**", "//", "e", "_"]), max_size=40).map("".join))
def test_what_looks_like_arithmetic_is_what_python_says_or_refused(text: str) -> None:
    try:
        read = read_expression(text)
    except BadExpression:
        return
    left, _, right = text.partition("=")
    exact = "".join(f"F({token})" if token.isdigit() else token for token in tokens(left))
    assert read.value == eval(exact, {"F": Fraction, "__builtins__": {}})
    assert not right or read.value == int(right.replace(" ", ""))


def tokens(text: str) -> list[str]:
    """Whole numbers without leading zeros, and single signs."""
    found: list[str] = []
    for sign in text.strip():
        if sign.isdigit() and found and found[-1].isdigit():
            found[-1] = str(int(found[-1] + sign))
        else:
            found.append(sign)
    return found


@given(st.text(max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        read_expression(text)
    except BadExpression:
        pass


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("9**9**9", r"a number is wanted where '\*' is"),
        ("9" * 5000, "more than 12 digits"),
        ("(" * 5000, "more than 50 deep"),
        ("*".join(["999999999999"] * 5000), "more than 100 numbers"),
        ("-" * 5000 + "1", "a number is wanted where '-' is"),
        ("1/0", "divides by zero"),
        ("1/(2-2)", "divides by zero"),
        ("(1", "a bracket is not closed"),
        ("1)", r"'\)' stands where nothing more is wanted"),
        ("1 2", "'2' stands where nothing more is wanted"),
        ("", "a number is wanted where the end is"),
        ("1+", "a number is wanted where the end is"),
        ("1+1=3", "it comes to 2, not to 3"),
        ("1+1=(2)", r"a number is wanted where '\(' is"),
        ("1+1=2=2", "'=' stands where nothing more is wanted"),
        ("1.5", r"'\.' is not part of arithmetic"),
        ("__import__('os').abort()", "'_' is not part of arithmetic"),
        ("\u0663+1", "is not part of arithmetic"),  # a digit, of another script
        ("1\u00b2", "is not part of arithmetic"),
    ],
)
def test_what_is_no_arithmetic_is_told_why(text: str, words: str) -> None:
    with pytest.raises(BadExpression, match=words):
        read_expression(text)


def test_brackets_beside_one_another_are_not_deep() -> None:
    assert read_expression("+".join(["((1))"] * 90)).value == 90


def test_signs_of_typography_are_read() -> None:
    assert read_expression("(6 \u00d7 4 \u2212 3) \u00f7 7 = 3").value == 3
    assert read_expression("-3 + +5 \u00b7 2").value == 7


# ---- the game ------------------------------------------------------------------------------------


def asked(state: str) -> tuple[int, list[int]]:
    target, numbers = state.removeprefix("Target: ").split(", numbers: ")
    return int(target), [int(number) for number in numbers.split(", ")]


def test_who_tries_all_combinations_wins_every_puzzle() -> None:
    env = CountdownEnv()
    for seed in range(40):
        target, numbers = asked(env.reset(seed, "train" if seed % 2 else "val"))
        answer = combined(numbers, target)
        assert answer is not None
        assert env.step(answer) == (
            "Correct!",
            1.0,
            True,
            False,
            {"success": True, "action_is_valid": True, "action_is_effective": True},
        )


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"num_numbers": (2, 2), "operators": "+"},
        {"num_numbers": (6, 6), "target_range": (100, 999), "number_range": (1, 100)},
        {"num_numbers": (5, 5), "use": "at_most_once"},
        {"num_numbers": (1, 1), "target_range": (10, 20)},
    ],
    ids=str,
)
def test_puzzles_are_as_asked_for_and_solved_by_their_solution(fields: dict[str, Any]) -> None:
    config = CountdownConfig(**fields)
    env = CountdownEnv(config)
    for seed in range(40):
        target, numbers = asked(env.reset(seed))
        assert config.num_numbers[0] <= len(numbers) <= config.num_numbers[1]
        assert all(config.number_range[0] <= number <= config.number_range[1] for number in numbers)
        assert config.target_range[0] <= target <= config.target_range[1]
        assert env.step(f"{env.puzzle.solution} = {target}")[1] == 1.0


def test_solutions_need_no_negative_numbers_and_no_fractions() -> None:
    env = CountdownEnv(CountdownConfig(num_numbers=(4, 4), target_range=(0, 100)))
    signs: set[str] = set()
    for seed in range(60):
        env.reset(seed)
        words = f"({env.puzzle.solution})"
        while found := re.search(r"\((\d+) ([-+*/]) (\d+)\)", words):
            result = read_expression(found[0]).value
            assert result >= 0
            assert result.denominator == 1
            signs.add(found[2])
            words = words.replace(found[0], str(result), 1)
        assert words == str(env.puzzle.target)
    assert signs == set("+-*/")


def test_the_number_that_is_not_needed_may_be_anywhere() -> None:
    env = CountdownEnv(CountdownConfig(num_numbers=(3, 3), use="at_most_once"))
    unused = set()
    for seed in range(60):
        env.reset(seed)
        assert env.puzzle.solution is not None
        needed = read_expression(env.puzzle.solution).numbers
        unused |= {place for place, number in enumerate(env.puzzle.numbers) if number not in needed}
    assert unused == {0, 1, 2}


@pytest.fixture
def puzzles(tmp_path: Path) -> str:
    path = tmp_path / "puzzles.jsonl"
    path.write_text('{"target": 24, "nums": [2, 3, 4]}\n', encoding="utf-8")
    return str(path)


def test_answers_that_are_too_long_are_not_read(puzzles: str) -> None:
    env = CountdownEnv(CountdownConfig(data_path=puzzles, max_answer_chars=10))
    env.reset(0)
    assert "more than 10 characters" in env.step("2 * 3 * 4  ")[0]


@pytest.mark.parametrize(
    ("answer", "use", "reward", "valid", "words"),
    [
        ("2*3*4", "exactly_once", 1.0, True, "Correct!"),
        ("2+3+4", "exactly_once", 0.1, True, "That comes to 9."),
        ("2/3+4", "exactly_once", 0.1, True, "That comes to 14/3."),
        ("2*3+4=11", "exactly_once", 0.0, False, "it comes to 10, not to 11"),
        ("4*3*2*1", "exactly_once", 0.0, False, "it uses 1 more often than it is there"),
        ("4*3+4*3", "at_most_once", 0.0, False, "it uses 3 more often than it is there"),
        ("3*4", "exactly_once", 0.0, False, "it leaves out 2"),
        ("3*4", "at_most_once", 0.1, True, "That comes to 12."),
        ("24", "at_most_once", 0.0, False, "it uses 24 more often"),
        ("twenty-four", "at_most_once", 0.0, False, "'t' is not part of arithmetic"),
    ],
)
def test_answers_are_judged(puzzles: str, answer: str, use: NumberUse, reward: float, valid: bool, words: str) -> None:
    env = CountdownEnv(CountdownConfig(data_path=puzzles, use=use))
    assert env.reset(0) == "Target: 24, numbers: 2, 3, 4"
    told, paid, terminated, truncated, info = env.step(answer)
    assert (paid, terminated, truncated) == (reward, True, False)
    assert info == {"success": reward == 1.0, "action_is_valid": valid, "action_is_effective": valid}
    assert words in told


def test_only_the_signs_that_are_allowed_may_be_used(puzzles: str) -> None:
    env = CountdownEnv(CountdownConfig(data_path=puzzles, operators="+-"))
    env.reset(0)
    told, reward, *_ = env.step("2*3*4")
    assert reward == 0.0
    assert "it uses '*', where + - are allowed" in told


@pytest.mark.parametrize("answer", ["5+-3", "-3+5", "5 + (-3)", "-(3 + -5)", "5 + \u22123"])
def test_a_sign_is_no_way_round_the_signs_that_are_allowed(tmp_path: Path, answer: str) -> None:
    (tmp_path / "puzzles.jsonl").write_text('{"target": 2, "nums": [5, 3]}\n')
    for operators, reward in {"+*": 0.0, "+-": 1.0}.items():
        env = CountdownEnv(CountdownConfig(data_path=str(tmp_path / "puzzles.jsonl"), operators=operators))
        env.reset(0)
        told, paid, *_ = env.step(answer)
        assert (paid, "it uses '-', where + * are allowed" in told) == (reward, reward == 0.0)


def test_further_attempts_are_told_what_is_asked(puzzles: str) -> None:
    env = CountdownEnv(CountdownConfig(data_path=puzzles, max_attempts=3))
    question = env.reset(0)
    first = env.step("2+3+4")
    assert first[0] == f"That comes to 9. {question}"
    assert first[2] is False
    assert env.metrics() == {"best_score": 0.1}
    env.step("no")
    assert env.metrics() == {"best_score": 0.1}
    assert env.step("2*3*4")[1:3] == (1.0, True)
    env.reset(0)
    assert [env.step("no")[2] for _ in range(3)] == [False, False, True]


def test_puzzles_of_a_file_are_split(tmp_path: Path) -> None:
    path = tmp_path / "puzzles.json"
    path.write_text(json.dumps([{"target": n, "nums": [n - 1, 1]} for n in range(10, 30)]), encoding="utf-8")
    env = CountdownEnv(CountdownConfig(data_path=str(path), val_share=0.25))
    targets = {mode: {asked(env.reset(seed, mode))[0] for seed in range(200)} for mode in ("train", "val")}
    assert (len(targets["train"]), len(targets["val"])) == (15, 5)
    assert targets["train"] | targets["val"] == set(range(10, 30))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"target": 24}', "line 2: the field `nums` is missing"),
        ('{"target": "24", "nums": [1]}', "line 2: `target` is '24', where a whole number"),
        ('{"target": 24, "nums": []}', r"line 2: `nums` is \[\], where a list of whole numbers"),
        ('{"target": 24, "nums": [1.5]}', "line 2: `nums` is"),
        ('{"target": 24, "nums": [1', "line 2: this is not JSON"),
        ("[]", "line 2: .* is not an object"),
    ],
)
def test_broken_lines_are_named(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "puzzles.jsonl"
    path.write_text(f'{{"target": 3, "nums": [1, 2]}}\n{line}\n', encoding="utf-8")
    with pytest.raises(DataFileError, match=words):
        CountdownEnv(CountdownConfig(data_path=str(path)))


def test_puzzles_that_are_not_found_are_named() -> None:
    config = CountdownConfig(num_numbers=(2, 2), number_range=(10, 10), operators="+-", target_range=(5, 6))
    with pytest.raises(ValueError, match=r"No puzzle with .* was found in 20000 tries"):
        CountdownEnv(config).reset(0)


@given(
    st.integers(0, 4).flatmap(lambda low: st.tuples(st.just(low), st.integers(low, low + 3))),
    st.text("+-*/", min_size=1, max_size=4),
)
def test_nothing_is_beyond_what_is_called_reach(numbers: tuple[int, int], operators: str) -> None:
    found: list[set[int]] = [set(range(numbers[0], numbers[1] + 1))]
    for _ in range(2):
        found.append({result for pair in zip(found, found[::-1], strict=True) for result in results(*pair, operators)})
    for span, values in zip(result_ranges(numbers, operators, 3), found, strict=True):
        assert not values or (span is not None and span[0] <= min(values) <= max(values) <= span[1])


def results(left: set[int], right: set[int], operators: str) -> set[int]:
    """What two numbers come to, whole and not negative."""
    values = (value_of((a, sign, b)) for a in left for b in right for sign in operators if sign != "/" or b)
    return {int(value) for value in values if value >= 0 and value.denominator == 1}


def test_a_file_of_puzzles_says_what_their_numbers_are(puzzles: str) -> None:
    assert CountdownConfig(data_path=puzzles, number_range=(0, 0)).number_range == (0, 0)
