"""Countdown and MetaMathQA: arithmetic, answers, the games, and files of data as others publish them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
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
)
from parallel_envs.groups.envs.metamathqa import (
    MetaMathQAConfig,
    MetaMathQAEnv,
    answer_in,
    is_same_answer,
    number,
)
from parallel_envs.groups.envs.records import DataFileError, read_entries
from tests.groups.envs.solvers import combined

# ---- arithmetic ----------------------------------------------------------------------------------

SPACE = st.sampled_from(["", " ", "  \n"])
EXPRESSIONS: st.SearchStrategy[str] = st.recursive(
    st.integers(0, 999).map(str),
    lambda inner: st.builds("({}{}{}{}{})".format, inner, SPACE, st.sampled_from("+-*/"), SPACE, inner),
    max_leaves=10,
)
LOOKALIKES = st.lists(st.sampled_from([*"0123456789+-*/()= .", "**", "//", "e", "_"]), max_size=40).map("".join)
UNUSUAL = {"+".join(["((1))"] * 90): 90, "(6 \u00d7 4 \u2212 3) \u00f7 7 = 3": 3, "-3 + +5 \u00b7 2": 7}
"""Many brackets beside one another, which are not deep, and signs of typography."""


def value_of(text: str) -> Any:
    """What Python says. Raises ZeroDivisionError."""
    exact = re.sub(r"\d+", lambda found: f"F({int(found[0])})", text.strip())
    return eval(exact, {"F": Fraction, "__builtins__": {}})


@given(EXPRESSIONS)
def test_expressions_have_their_value_and_tell_their_numbers(text: str) -> None:
    try:
        value = value_of(text)
    except ZeroDivisionError:
        with pytest.raises(BadExpression, match="divides by zero"):
            read_expression(text)
        return
    read = read_expression(text)
    assert (read.value, list(read.numbers)) == (value, list(map(int, re.findall(r"\d+", text))))


@given(LOOKALIKES | st.text(max_size=80))
def test_lookalikes_of_arithmetic_have_the_value_that_python_says_or_are_refused(text: str) -> None:
    assert {unusual: read_expression(unusual).value for unusual in UNUSUAL} == UNUSUAL
    try:
        read = read_expression(text)
    except BadExpression:
        return
    left, _, right = text.partition("=")
    assert text.isascii() is False or read.value == value_of(left)
    assert not right or read.value == int(right.replace(" ", ""))


def test_refused_arithmetic_is_told_why() -> None:
    for words, *texts in (
        (r"a number is wanted where ('\*'|'-'|the end) is", "9**9**9", "-" * 5000 + "1", "1+"),
        ("more than 12 digits", "9" * 5000),
        ("more than 50 deep", "(" * 5000),
        ("more than 100 numbers", "*".join(["999999999999"] * 5000)),
        ("divides by zero", "1/(2-2)"),
        ("a bracket is not closed", "(1"),
        ("'[)=]' stands where nothing more is wanted", "1)", "1+1=2=2"),
        ("it comes to 2, not to 3", "1+1=3"),
        ("is not part of arithmetic", "__import__('os').abort()", "\u0663+1", "1\u00b2"),  # digits of other scripts
    ):
        for text in texts:
            with pytest.raises(BadExpression, match=words):
                read_expression(text)


# ---- the game ------------------------------------------------------------------------------------


def asked(state: str) -> tuple[int, list[int]]:
    target, numbers = state.removeprefix("Target: ").split(", numbers: ")
    return int(target), [int(number) for number in numbers.split(", ")]


def test_a_player_that_tries_all_combinations_wins_every_puzzle() -> None:
    env = CountdownEnv()
    for seed in range(20):
        target, numbers = asked(env.reset(seed, "train" if seed % 2 else "val"))
        told, reward, *ends, info = env.step(combined(numbers, target) or "there is none")
        assert (told, reward, ends, info["success"]) == ("Correct!", 1.0, [True, False], True)


@pytest.mark.parametrize(
    "fields",
    [
        {"num_numbers": (2, 2), "operators": "+"},
        {"num_numbers": (6, 6), "target_range": (100, 999), "number_range": (1, 100)},
        {"num_numbers": (3, 3), "use": "at_most_once"},
        {"num_numbers": (1, 1), "target_range": (10, 20)},
    ],
    ids=str,
)
def test_puzzles_are_as_asked_for_and_solved_by_their_solution(fields: dict[str, Any]) -> None:
    config = CountdownConfig(**fields)
    env, unused = CountdownEnv(config), set()
    for seed in range(40):
        target, numbers = asked(env.reset(seed))
        assert config.num_numbers[0] <= len(numbers) <= config.num_numbers[1]
        assert all(config.number_range[0] <= number <= config.number_range[1] for number in numbers)
        assert config.target_range[0] <= target <= config.target_range[1]
        assert env.step(f"{env.puzzle.solution} = {target}")[1] == 1.0
        needed = read_expression(env.puzzle.solution or "").numbers
        unused |= {place for place, number in enumerate(numbers) if number not in needed}
    # the number that is not needed may be anywhere
    assert unused == (set(range(len(numbers))) if config.use == "at_most_once" else set())


@pytest.fixture
def puzzles(tmp_path: Path) -> str:
    path = tmp_path / "puzzles.jsonl"
    path.write_text('{"target": 24, "nums": [2, 3, 4]}\n', encoding="utf-8")
    return str(path)


def test_answers_that_are_too_long_are_not_read(puzzles: str) -> None:
    env = CountdownEnv(CountdownConfig(data_path=puzzles, max_answer_chars=10))
    env.reset(0)
    assert "more than 10 characters" in env.step("2 * 3 * 4  ")[0]
    other = MetaMathQAEnv(MetaMathQAConfig(max_answer_chars=30))
    right = worked_out(other.reset(0))
    assert other.step(" " * 30 + str(right))[4]["action_is_valid"] is False
    assert other.step(str(right))[2] is True


def test_answers_are_judged(puzzles: str) -> None:
    ways: list[tuple[str, NumberUse, float, bool, str]] = [
        ("2*3*4", "exactly_once", 1.0, True, "Correct!"),
        ("2/3+4", "exactly_once", 0.1, True, "That comes to 14/3."),
        ("2*3+4=11", "exactly_once", 0.0, False, "it comes to 10, not to 11"),
        ("4*3*2*1", "exactly_once", 0.0, False, "it uses 1 more often than it is there"),
        ("4*3+4*3", "at_most_once", 0.0, False, "it uses 3 more often than it is there"),
        ("3*4", "exactly_once", 0.0, False, "it leaves out 2"),
        ("3*4", "at_most_once", 0.1, True, "That comes to 12."),
        ("twenty-four", "at_most_once", 0.0, False, "'t' is not part of arithmetic"),
    ]
    for answer, use, reward, valid, words in ways:
        env = countdown_of(puzzles, use=use)
        assert env.reset(0) == "Target: 24, numbers: 2, 3, 4"
        told, *others = env.step(answer)
        info = {"success": reward == 1.0, "action_is_valid": valid, "action_is_effective": valid}
        assert (others, words in told) == ([reward, True, False, info], True)


def test_a_sign_is_no_way_round_the_signs_that_are_allowed(tmp_path: Path) -> None:
    path = tmp_path / "puzzles.jsonl"
    path.write_text('{"target": 2, "nums": [5, 3]}\n')
    for operators, reward in {"+*": 0.0, "+-": 1.0}.items():  # a file decides the numbers, not `number_range`
        for answer in ("5+-3", "-3+5", "-(3 + -5)", "5 + \u22123"):
            env = CountdownEnv(CountdownConfig(data_path=str(path), operators=operators, number_range=(0, 0)))
            env.reset(0)
            told, paid, *_ = env.step(answer)
            assert (paid, "it uses '-', where + * are allowed" in told) == (reward, reward == 0.0)


def test_further_attempts_are_told_what_is_asked(puzzles: str) -> None:
    env = CountdownEnv(CountdownConfig(data_path=puzzles, max_attempts=3))
    question = env.reset(0)
    assert env.step("2+3+4")[:3] == (f"That comes to 9. {question}", 0.1, False)
    env.step("no")
    assert env.metrics() == {"best_score": 0.1}
    assert env.step("2*3*4")[1:3] == (1.0, True)
    env.reset(0)
    assert [env.step("no")[2] for _ in range(3)] == [False, False, True]


def entry(**fields: Any) -> dict[str, Any]:
    told = {"query": "1 + 1?", "response": "The answer is: 2", "type": "GSM_AnsAug", "original_question": "1 + 1?"}
    return told | fields


def countdown_of(path: Path | str, **fields: Any) -> CountdownEnv:
    return CountdownEnv(CountdownConfig(data_path=str(path), **fields))


def questions_of(path: Path | str, **fields: Any) -> MetaMathQAEnv:
    return MetaMathQAEnv(MetaMathQAConfig(data_path=str(path), **fields))


BROKEN: list[tuple[Callable[..., Any], Any, str]] = [
    (countdown_of, {"target": 24}, "the field `nums` is missing"),
    (countdown_of, {"target": "24", "nums": [1]}, "`target` is '24', where a whole number"),
    (countdown_of, {"target": 24, "nums": []}, r"`nums` is \[\], where a list of whole numbers"),
    (countdown_of, {"target": 24, "nums": [1.5]}, "`nums` is"),
    (countdown_of, [], ".* is not an object"),
    (questions_of, entry(response="It is two."), "`response` has no answer behind 'The answer is:'"),
    (questions_of, entry(response="The answer is: "), "`response` has no answer"),
    (questions_of, entry(query=3), "`query` is 3, where a text is wanted"),
    (questions_of, {"query": "?"}, "the field `response` is missing. There are query"),
    (questions_of, "no object", '"no object" is not an object with fields'),
]


def test_broken_lines_and_files_are_named(tmp_path: Path) -> None:
    for place, (read, broken, words) in enumerate(BROKEN):
        path = tmp_path / f"{place}.jsonl"
        path.write_text(f"{json.dumps(entry(target=3, nums=[1, 2]))}\n{json.dumps(broken)}\n", encoding="utf-8")
        with pytest.raises(DataFileError, match=f"line 2: {words}") as caught:
            read(path)
        assert (caught.value.path, caught.value.line) == (str(path), 2)
    with pytest.raises(DataFileError, match=r"cannot be read .* Give the path of a file that is there"):
        questions_of(tmp_path / "none.json")
    (tmp_path / "empty.jsonl").write_text("\n", encoding="utf-8")
    with pytest.raises(DataFileError, match="there are no entries that can be used"):
        questions_of(tmp_path / "empty.jsonl")


# ---- answers -------------------------------------------------------------------------------------


ALIKE = [(" 42. ", "42"), ("42.00", "42"), ("1,250", "1250"), ("$1{,}250$", "1250"), ("-0.5", "-1/2"), ("50%", "0.5")]
ALIKE += [(r"\frac{1}{2}", "0.5"), (r"\boxed{\dfrac{3}{4}}", "3/4"), ("X = 3 Y", "x=3y")]
ALIKE += [(r"\text{Monday}", "monday"), (r"\left( 1, 2 \right)", "(1,2)"), (r"\$5", "5")]
UNLIKE = [("", ""), ("41", "42"), ("4 2.5", "4"), ("1/0", "1"), ("12,50", "1250"), ("-5", "5"), ("1e3", "1000")]


def test_the_same_in_other_writing() -> None:
    for pairs, same in ((ALIKE, True), (UNLIKE, False)):
        for answer, wanted in pairs:
            assert is_same_answer(answer, wanted) is is_same_answer(wanted, answer) is same, (answer, wanted)
    assert answer_in("2 + 2 = 4.\nThe answer is: 4") == "4"
    assert answer_in("The answer is: 3? No.\nthe answer is: 4\n") == "4"
    assert answer_in("\u0130\u0130\u0130 The Answer Is: 4") == "4"  # signs that are longer in lower case
    assert answer_in("It is 4.") is None


@given(st.integers(-(10**12), 10**12), st.integers(0, 6))
def test_numbers_are_compared_by_value(units: int, places: int) -> None:
    sign, digits = "-" if units < 0 else "", str(abs(units)).rjust(places + 1, "0")
    whole, decimals = digits[: len(digits) - places], digits[len(digits) - places :]
    point = "." if decimals else ""
    written = {f"{sign}{whole}{point}{decimals}", f"{sign}{int(whole):,}{point}{decimals}", f"{units}/{10**places}"}
    assert {number(one) for one in written} == {Fraction(units, 10**places)}
    assert all(is_same_answer(one, f"{units}/{10**places}") for one in written)


def test_long_nonsense_is_compared_at_once() -> None:
    for text in ("9" * 100_000, "\\frac{" * 20_000, "1," * 50_000, "{" * 100_000, "$ " * 50_000):
        assert (is_same_answer(text, "42"), number(text)) == (False, None)


# ---- the env -------------------------------------------------------------------------------------


WORKED_OUT: dict[str, Callable[..., int]] = {
    " buys ": lambda many, price, paid: paid - many * price,
    " shares ": lambda total, friends: total % friends,
    " every week": lambda start, weekly, weeks: start + weekly * weeks,
    " gives away half ": lambda total, given_away: total // 2 - given_away,
    " walks ": lambda hours, pace, more: hours * pace + more,
}


def worked_out(question: str) -> int:
    """Reads the little stories and works them out, without looking at any answer."""
    story, _, equation = question.partition(" Call the result r")
    [rule] = [rule for words, rule in WORKED_OUT.items() if words in story]
    result = rule(*map(int, re.findall(r"\d+", story)))
    return int(re.findall(r"\d+", equation)[-1]) - result if equation else result


def test_a_player_that_works_out_the_stories_wins() -> None:
    env = MetaMathQAEnv()
    for seed in range(100):
        answer = worked_out(env.reset(seed, "train" if seed % 2 else "val"))
        assert env.step(f"I think so.\nThe answer is: {answer}")[:4] == ("Correct!", 1.0, True, False)


def test_each_further_attempt_is_worth_half_and_the_last_ends_it() -> None:
    env = MetaMathQAEnv(MetaMathQAConfig(max_attempts=None))
    right = worked_out(env.reset(0))
    for attempt in range(7):
        assert env.step(f"{right + 1}")[:4] == ("Wrong. Think again.", 0.0, False, False)
        assert env.metrics() == {"attempts": attempt + 1}
    assert env.step(str(right))[1:3] == (1 / 2**7, True)
    env = MetaMathQAEnv(MetaMathQAConfig(max_attempts=2))
    env.reset(0)
    assert env.step("no")[2] is False
    info = {"success": False, "action_is_valid": False, "action_is_effective": False}
    assert env.step("") == ("Wrong.", 0.0, True, False, info)


def originals(env: MetaMathQAEnv) -> list[set[str]]:
    return [{question.original for question in half} for half in env._questions]


def test_training_and_validation_share_no_question() -> None:
    train, val = originals(MetaMathQAEnv())
    assert (train.isdisjoint(val), len(val)) == (True, round(0.1 * len(train | val)))
    train, val = originals(MetaMathQAEnv(MetaMathQAConfig(val_share=0.0)))
    assert train == val


def test_a_file_is_read_once_and_again_when_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text(json.dumps(entry()), encoding="utf-8")
    first = questions_of(path)._questions
    assert questions_of(path, score=2)._questions is first
    path.write_text(json.dumps(entry(query="What is 1 + 1, now that it is asked anew?")), encoding="utf-8")
    assert questions_of(path).reset(0).endswith("anew?")


def test_entries_without_an_answer_can_be_left_out(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    entries = [entry(response="It is two."), entry(query="first"), entry(response=""), entry(query="second"), entry()]
    path.write_text("\n".join(map(json.dumps, entries)), encoding="utf-8")
    env = questions_of(path, skip_unanswered=True, max_instances=2, val_share=0)
    assert {env.reset(seed) for seed in range(20)} == {"first", "second"}


PUZZLES = [{"target": 24 + number, "nums": [number, 20, 4]} for number in range(1, 31)]


def table(path: Path, rows: list[dict[str, Any]]) -> str:
    """A Parquet file of these rows, in groups of 7 of them."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=7)
    return str(path)


def countdown_row(number: int, puzzle: dict[str, Any]) -> dict[str, Any]:
    """A row as TinyZero's preparation writes it, and RAGEN reads it."""
    asked = {"content": f"Using the numbers {puzzle['nums']}, make {puzzle['target']}.", "role": "user"}
    rule = {"ground_truth": {"numbers": puzzle["nums"], "target": puzzle["target"]}, "style": "rule"}
    more = {"ability": "math", "extra_info": {"index": number, "split": "train"}}
    return {**puzzle, "data_source": "countdown", "prompt": [asked], "reward_model": rule, **more}


@pytest.mark.parametrize("columns", ["target and nums", "all"])
def test_countdown_parquet_as_published_is_read_as_lines_are_and_split(tmp_path: Path, columns: str) -> None:
    rows = [countdown_row(number, one) if columns == "all" else one for number, one in enumerate(PUZZLES)]
    path = table(tmp_path / "train.parquet", rows)
    in_lines = tmp_path / "train.jsonl"
    in_lines.write_text("\n".join(map(json.dumps, PUZZLES)))
    for config in ({"val_share": 0.0}, {"max_instances": 9}, {"val_share": 0.25}):
        env, same = countdown_of(path, **config), countdown_of(in_lines, **config)
        targets: dict[str, set[int]] = {"train": set(), "val": set()}
        for seed in range(150):
            for mode, found in targets.items():
                assert env.reset(seed, mode) == same.reset(seed, mode)
                assert env.puzzle == same.puzzle
                found.add(env.puzzle.target)
    assert targets["train"] | targets["val"] == {one["target"] for one in PUZZLES}
    assert (len(targets["train"]), len(targets["val"])) == (22, 8)
    assert type(env.puzzle.target) is type(env.puzzle.numbers[0]) is int
    assert {key for (key,) in [tuple(one.value) for one in read_entries(path, 1, ("target",))]} == {"target"}


def test_parquet_that_cannot_be_used_is_told_with_its_row(tmp_path: Path) -> None:
    for rows, words in (
        ([*PUZZLES[:8], {"target": -1, "nums": [1]}], r"odd.parquet, line 9: `target` is -1"),
        ([{"target": 3, "numbers": [1, 2]}], r"the field `nums` is missing\. There are numbers, target"),
    ):
        with pytest.raises(DataFileError, match=words):
            countdown_of(table(tmp_path / "odd.parquet", rows))
    for content in (b"nums,target\n", b""):
        (tmp_path / "text.parquet").write_bytes(content)
        with pytest.raises(DataFileError, match="Give the path of a Parquet file"):
            countdown_of(tmp_path / "text.parquet")


MATH = [
    dict(zip(("type", "query", "original_question", "response"), fields, strict=True))
    for fields in (
        ("MATH_AnsAug", "How far is $1+2i$?", "Joe chooses.", "$\\boxed{\\sqrt{5}}.$\nThe answer is: \\sqrt{5}"),
        ("GSM_Rephrased", "5 and 6 \u2013 what?", "Add 5 and 6.", "<<5+6=11>>11\n#### 11\nThe answer is: 11"),
        ("GSM_FOBAR", "x and 6 are 11. What is x?", "Add 5 and 6.", "x = 11 - 6\nx = 5\nThe answer is: 5"),
    )
]


@pytest.mark.parametrize("form", ["indented", "dense", "parquet"])
def test_metamathqa_as_published(tmp_path: Path, form: str) -> None:
    path = str(tmp_path / "MetaMathQA-395K.json")
    if form == "parquet":
        path = table(tmp_path / "train.parquet", MATH)
    else:
        Path(path).write_text(json.dumps(MATH, indent=4 if form == "indented" else None), encoding="utf-8")
    env = questions_of(path, val_share=0.0)
    asked = {env.reset(seed): env.question for seed in range(30)}
    found = [(asked[one["query"]].kind, asked[one["query"]].original, asked[one["query"]].answer) for one in MATH]
    wanted = [(one["type"], one["original_question"], one["response"].split("The answer is: ")[1]) for one in MATH]
    assert (found, len(asked)) == (wanted, len(MATH))
    split = questions_of(path, val_share=0.5)
    kept = [{split.reset(seed, mode) and split.question.original for seed in range(30)} for mode in ("train", "val")]
    assert not kept[0] & kept[1]  # variations of a question stay together
