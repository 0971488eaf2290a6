from __future__ import annotations

import json
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallel_envs.groups.envs.metamathqa import (
    MetaMathQAConfig,
    MetaMathQAEnv,
    answer_in,
    given_answer,
    is_same_answer,
    number,
    plain,
    questions_for,
)
from parallel_envs.groups.envs.records import DataFileError

# ---- answers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        ("42", "42"),
        (" 42. ", "42"),
        ("42.00", "42"),
        ("1,250", "1250"),
        ("$1{,}250$", "1250"),
        ("-0.5", "-1/2"),
        ("50%", "0.5"),
        (r"\frac{1}{2}", "0.5"),
        (r"\boxed{\dfrac{3}{4}}", "3/4"),
        ("X = 3 Y", "x=3y"),
        (r"\text{Monday}", "monday"),
        (r"\left( 1, 2 \right)", "(1,2)"),
        (r"\$5", "5"),
    ],
)
def test_the_same_in_other_writing(answer: str, wanted: str) -> None:
    assert is_same_answer(answer, wanted)
    assert is_same_answer(wanted, answer)


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [("", ""), ("41", "42"), ("4 2.5", "4"), ("1/0", "1"), ("12,50", "1250"), ("-5", "5"), ("x", "y"), ("1e3", "1000")],
)
def test_what_is_not_the_same(answer: str, wanted: str) -> None:
    assert not is_same_answer(answer, wanted)


@given(st.integers(-(10**12), 10**12), st.integers(0, 6))
def test_numbers_are_compared_by_value(units: int, places: int) -> None:
    exact = Fraction(units, 10**places)
    sign, digits = "-" if units < 0 else "", str(abs(units)).rjust(places + 1, "0")
    whole, decimals = digits[: len(digits) - places], digits[len(digits) - places :]
    told = f"{sign}{whole}.{decimals}" if decimals else f"{sign}{whole}"
    assert number(told) == exact
    assert number(f"{sign}{int(whole):,}{'.' if decimals else ''}{decimals}") == exact
    assert number(f"{units}/{10**places}") == exact
    assert is_same_answer(f"The answer is {told}"[14:], f"{units}/{10**places}")


@given(st.text(max_size=60), st.text(max_size=60))
def test_any_two_texts_can_be_compared(answer: str, wanted: str) -> None:
    assert is_same_answer(answer, wanted) == is_same_answer(wanted, answer)
    assert is_same_answer(answer, answer) == (plain(answer) != "")


@pytest.mark.parametrize("text", ["9" * 100_000, "\\frac{" * 20_000, "1," * 50_000, "{" * 100_000, "$ " * 50_000])
def test_long_nonsense_is_compared_at_once(text: str) -> None:
    assert not is_same_answer(text, "42")
    assert number(text) is None


def test_what_follows_the_mark_is_the_answer() -> None:
    assert answer_in("2 + 2 = 4.\nThe answer is: 4") == "4"
    assert answer_in("The answer is: 3? No.\nthe answer is: 4\n") == "4"
    assert answer_in("\u0130\u0130\u0130 The Answer Is: 4") == "4"  # signs that are longer in lower case
    assert answer_in("It is 4.") is None
    assert given_answer(" It is 4. ") == "It is 4."


# ---- the env -------------------------------------------------------------------------------------


def worked_out(question: str) -> int:
    """Reads the little stories and works them out, without looking at any answer."""
    figures = list(map(int, re.findall(r"\d+", question)))
    if "Call the result r" in question:
        return figures[-1] - worked_out(question.split(" Call the result r")[0])
    match question:
        case story if " buys " in story:
            many, price, paid = figures
            return paid - many * price
        case story if " shares " in story:
            total, friends = figures
            return total % friends
        case story if " every week" in story:
            start, weekly, weeks = figures
            return start + weekly * weeks
        case story if " gives away half " in story:
            total, given_away = figures
            return total // 2 - given_away
    hours, pace, more = figures
    return hours * pace + more


def test_who_works_out_the_stories_wins() -> None:
    env = MetaMathQAEnv()
    for seed in range(100):
        for mode in ("train", "val"):
            answer = worked_out(env.reset(seed, mode))
            assert env.step(f"I think so.\nThe answer is: {answer}")[:4] == ("Correct!", 1.0, True, False)


def test_each_further_attempt_is_worth_half() -> None:
    env = MetaMathQAEnv(MetaMathQAConfig(max_attempts=None))
    right = worked_out(env.reset(0))
    for attempt in range(7):
        assert env.step(f"{right + 1}")[:4] == ("Wrong. Think again.", 0.0, False, False)
        assert env.metrics() == {"attempts": attempt + 1}
    assert env.step(str(right))[1:3] == (1 / 2**7, True)


def test_the_last_attempt_ends_it() -> None:
    env = MetaMathQAEnv(MetaMathQAConfig(max_attempts=2))
    env.reset(0)
    assert env.step("no")[2] is False
    state, reward, terminated, truncated, info = env.step("")
    assert (state, reward, terminated, truncated) == ("Wrong.", 0.0, True, False)
    assert info == {"success": False, "action_is_valid": False, "action_is_effective": False}


def test_answers_that_are_too_long_are_not_read() -> None:
    env = MetaMathQAEnv(MetaMathQAConfig(max_answer_chars=30))
    right = worked_out(env.reset(0))
    assert env.step(" " * 30 + str(right))[4]["action_is_valid"] is False
    assert env.step(str(right))[2] is True


def test_training_and_validation_share_no_question() -> None:
    asked = {
        mode: {question.original for question in questions_for(MetaMathQAConfig(), training=mode == "train")}
        for mode in ("train", "val")
    }
    assert asked["train"].isdisjoint(asked["val"])
    assert len(asked["val"]) == round(0.1 * len(asked["train"] | asked["val"]))
    together = MetaMathQAConfig(val_share=0.0)
    assert questions_for(together, training=True) == questions_for(together, training=False)


def entry(**fields: Any) -> dict[str, Any]:
    return {
        "query": "1 + 1?",
        "response": "The answer is: 2",
        "type": "GSM_AnsAug",
        "original_question": "1 + 1?",
    } | fields


@pytest.mark.parametrize("name", ["set.json", "set.jsonl"])
def test_files_in_the_format_of_the_data_set_are_read(tmp_path: Path, name: str) -> None:
    entries = [entry(query=f"{n} + 1?", response=f"So.\nThe answer is: {n + 1}") for n in range(4)]
    content = json.dumps(entries, indent=1) if name.endswith(".json") else "\n".join(map(json.dumps, entries))
    (tmp_path / name).write_text(content, encoding="utf-8")
    config = MetaMathQAConfig(data_path=str(tmp_path / name), max_instances=3)
    assert [question.query for question in questions_for(config, training=True)] == ["0 + 1?", "1 + 1?", "2 + 1?"]
    env = MetaMathQAEnv(config)
    assert env.step(str(int(env.reset(5)[0]) + 1))[2] is True


def test_a_file_is_read_once_and_again_when_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    config = MetaMathQAConfig(data_path=str(path))
    path.write_text(json.dumps(entry()), encoding="utf-8")
    first = questions_for(config, training=True)
    assert questions_for(MetaMathQAConfig(data_path=str(path), score=2), training=True) is first
    path.write_text(json.dumps(entry(query="What is 1 + 1, now that it is asked anew?")), encoding="utf-8")
    assert questions_for(config, training=True)[0].query.endswith("anew?")


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (entry(response="It is two."), "line 2: `response` has no answer behind 'The answer is:'"),
        (entry(response="The answer is: "), "line 2: `response` has no answer"),
        (entry(query=3), "line 2: `query` is 3, where a text is wanted"),
        ({"query": "?"}, "line 2: the field `response` is missing. There are query"),
        ("no object", 'line 2: "no object" is not an object with fields'),
    ],
)
def test_broken_entries_are_named(tmp_path: Path, broken: Any, words: str) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text(f"{json.dumps(entry())}\n{json.dumps(broken)}\n", encoding="utf-8")
    with pytest.raises(DataFileError, match=words) as caught:
        MetaMathQAEnv(MetaMathQAConfig(data_path=str(path)))
    assert (caught.value.path, caught.value.line) == (str(path), 2)


def test_entries_without_an_answer_can_be_left_out(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    entries = [entry(response="It is two."), entry(query="first"), entry(response=""), entry(query="second"), entry()]
    path.write_text("\n".join(map(json.dumps, entries)), encoding="utf-8")
    config = MetaMathQAConfig(data_path=str(path), skip_unanswered=True, max_instances=2, val_share=0)
    assert [question.query for question in questions_for(config, training=True)] == ["first", "second"]


def test_files_that_are_not_there_or_empty_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataFileError, match=r"cannot be read .* Give the path of a file that is there"):
        MetaMathQAEnv(MetaMathQAConfig(data_path=str(tmp_path / "none.json")))
    (tmp_path / "empty.jsonl").write_text("\n", encoding="utf-8")
    with pytest.raises(DataFileError, match="there are no questions"):
        MetaMathQAEnv(MetaMathQAConfig(data_path=str(tmp_path / "empty.jsonl")))
