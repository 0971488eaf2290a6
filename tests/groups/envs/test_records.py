from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallel_envs.errors import EnvError, ParallelEnvsError
from parallel_envs.groups.envs.records import (
    DataFileError,
    Entry,
    data_file_error,
    file_version,
    read_entries,
    train_or_val_items,
)

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def written(folder: Path, name: str, content: str) -> str:
    (folder / name).write_text(content, encoding="utf-8")
    return str(folder / name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("records")


@given(st.lists(VALUES, max_size=5), st.sampled_from([None, 1]))
def test_arrays_are_read_entry_by_entry(folder: Path, values: list[Any], indent: int | None) -> None:
    path = written(folder, "array.json", json.dumps(values, indent=indent))
    assert [entry.value for entry in read_entries(path)] == values


@given(st.lists(VALUES, max_size=5))
def test_lines_are_counted(folder: Path, values: list[Any]) -> None:
    one_a_line = "[\n" + ",\n".join(map(json.dumps, values)) + "]\n"
    found = list(read_entries(written(folder, "lines.json", one_a_line)))
    assert [(entry.value, entry.line) for entry in found] == [(v, n) for n, v in enumerate(values, start=2)]
    as_lines = "\n\n".join(map(json.dumps, values))
    found = list(read_entries(written(folder, "lines.jsonl", as_lines)))
    assert [(entry.value, entry.line) for entry in found] == [(v, 2 * n + 1) for n, v in enumerate(values)]


@given(st.dictionaries(st.text(max_size=5), VALUES, max_size=5))
def test_objects_are_read_key_by_key(folder: Path, values: dict[str, Any]) -> None:
    path = written(folder, "object.json", json.dumps(values, indent=2))
    assert {entry.key: entry.value for entry in read_entries(path)} == values


@given(st.lists(VALUES, min_size=1, max_size=4), st.data())
def test_what_is_cut_off_is_an_error_that_names_the_file(folder: Path, values: list[Any], data: st.DataObject) -> None:
    content = json.dumps(values, indent=1)
    path = written(folder, "cut.json", content[: data.draw(st.integers(0, len(content) - 1))])
    with pytest.raises(DataFileError, match=r"cut\.json") as caught:
        list(read_entries(path))
    assert 1 <= (caught.value.line or 0) <= content.count("\n") + 1


@given(st.text(max_size=30), st.sampled_from(["any.json", "any.jsonl"]))
def test_any_text_is_read_or_refused(folder: Path, content: str, name: str) -> None:
    path = written(folder, name, content.encode(errors="replace").decode())
    try:
        list(read_entries(path))
    except DataFileError:
        pass


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('[\n{"a": 1},\n{"a": }\n]', "line 3: this is not JSON"),
        ('[\n{"a": 1}\n{"a": 2}\n]', r"line 3: '\{' stands where one of ',\]' is wanted"),
        ("[\n1,\n2", "line 3: 'the end' stands where"),
        ("[] 2", "line 1: more stands behind the last ']'"),
        ("[1] 2", "line 1: more stands behind the last ']'"),
        ("{\n1: 2}", "line 2: 1 is no key"),
        ('"text"', "line 1: '\"' stands where one of"),
        ("[" * 100_000, "line 1: this cannot be read"),
        ("[" + "9" * 5000 + "]", "line 1: this cannot be read"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, content: str, words: str) -> None:
    with pytest.raises(DataFileError, match=words):
        list(read_entries(written(tmp_path, "broken.json", content)))


def test_files_are_read_as_far_as_wanted_whatever_they_are(tmp_path: Path) -> None:
    much = written(tmp_path, "much.json", "[1, 2, 3, broken")
    assert [entry.value for entry in read_entries(much, 3)] == [1, 2, 3]
    (tmp_path / "marked.json").write_bytes(b"\xef\xbb\xbf[1]")  # a mark of byte order is no fault
    assert [entry.value for entry in read_entries(str(tmp_path / "marked.json"))] == [1]
    [entry] = read_entries(written(tmp_path, "nan.json", '[{"a": NaN, "b": null, "c": 0.0}]'))
    assert [entry.has(name) for name in "abcd"] == [False, False, True, False]
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataFileError, match=r"bytes\.json: cannot be read"):
        list(read_entries(str(tmp_path / "bytes.json")))
    with pytest.raises(DataFileError, match="none: cannot be read"):
        file_version(str(tmp_path / "none"))
    with pytest.raises(DataFileError, match="line 4: this is not a list of things"):
        list(read_entries(written(tmp_path, "lists.json", '{\n"a": [],\n"b":\n5}'), lists="things"))


OTHERS = '{"a": 2}\n{"a": 3}\n'


BROKEN = ['{"a": 1', '{"a": }', '{"a":', '{"a": 1,', '{"a": "x', '{"a": [1, 2}', '{"a": [', '{"a": 1}}', '{"a": 1} {']


@pytest.mark.parametrize("blank", ["", "\n", " \n\n"])
def test_the_broken_line_is_the_one_that_is_named(tmp_path: Path, blank: str) -> None:
    whole = list(read_entries(written(tmp_path, "lines.json", f"{blank}{OTHERS}")))
    begins = blank.count("\n") + 1
    assert [(entry.value, entry.line, entry.key) for entry in whole] == [
        ({"a": 2}, begins, None),
        ({"a": 3}, begins + 1, None),
    ]
    for content in [f"{blank}{first}\n{OTHERS}" for first in (*BROKEN, "{a: 1}")]:
        with pytest.raises(DataFileError) as caught:
            list(read_entries(written(tmp_path, "lines.json", content)))
        assert (caught.value.line or 0) >= begins  # an object may go on in the next lines
    with pytest.raises(DataFileError, match=rf"lines.json, line {begins + 1}: this is not JSON"):
        list(read_entries(written(tmp_path, "lines.json", f'{blank}{{"a": 1}}\n{{"a":\n')))


@pytest.mark.parametrize(
    ("only", "keys"),
    [
        ('{"query": "?", "response": "no"}', [None]),
        ('{"nums": [2, 3], "target": 5}', [None]),
        ('{"B1": {"attributes": []}, "B2": {}}', ["B1", "B2"]),
        ('{"B1": [{"instruction": "?"}], "B2": []}', ["B1", "B2"]),
        ("{}", []),
        ('{\n"a": 1}', ["a"]),
    ],
)
def test_a_single_line_is_an_entry_if_it_has_fields_of_its_own(
    tmp_path: Path, only: str, keys: list[str | None]
) -> None:
    for content in (only, f"{only}\n", f"\n{only}"):
        assert [entry.key for entry in read_entries(written(tmp_path, "one.json", content))] == keys


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ('{\n"B1":\n{"a": 1},\n"B2":\n{"a": }\n}', 5),
        ('{"B1": [\n{"a": 1}\n{"a": 2}\n]}', 3),
        ('{"B1": [\n{"a": 1},\n{"a": 2},\n{"a" 3}\n]}', 4),
        ('{"B1": [{"a": 1},\n{"a": 2}\n],\n"B2" []}', 4),
    ],
)
def test_objects_of_entries_are_not_taken_for_lines(tmp_path: Path, content: str, line: int) -> None:
    with pytest.raises(DataFileError) as caught:
        list(read_entries(written(tmp_path, "object.json", content)))
    assert caught.value.line == line


@given(st.dictionaries(st.text(max_size=4), st.lists(VALUES, max_size=4), max_size=4))
def test_lists_are_read_item_by_item(folder: Path, lists: dict[str, list[Any]]) -> None:
    items = [(key, value) for key, values in lists.items() for value in values]
    path = written(folder, "lists.json", json.dumps(lists, indent=1))
    assert [(entry.key, entry.value) for entry in read_entries(path, lists="things")] == items


@given(st.lists(VALUES, min_size=1, max_size=5))
def test_items_of_lists_have_lines_of_their_own(folder: Path, values: list[Any]) -> None:
    rows = ",\n".join(map(json.dumps, values))
    path = written(folder, "lists.json", f'{{"a": [\n{rows}\n],\n"b": [\n{rows}\n]}}')
    lines = [entry.line for entry in read_entries(path, lists="things")]
    assert lines == [*range(2, len(values) + 2), *range(len(values) + 4, 2 * len(values) + 4)]


def test_errors_belong_to_the_package_and_survive_pickling() -> None:
    error = Entry({}, "items.json", 7).error("it is empty.")
    assert isinstance(error, ParallelEnvsError)
    assert isinstance(error, ValueError)
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.path, copy.line) == ("items.json, line 7: it is empty.", "items.json", 7)


@pytest.mark.parametrize("path", ["items.json", "C:\\data\\items.json", "a: b/items, line.json", "\u00fc \n.json"])
def test_errors_are_told_again_by_their_text(path: str) -> None:
    name = f"{DataFileError.__module__}.{DataFileError.__qualname__}"
    original = data_file_error(path, 7, "`a`: it is empty, as line 3: is.")
    again: Any = EnvError.named(name)("Env 0 raised", type_name=name, remote_message=str(original))
    for error in (again, pickle.loads(pickle.dumps(again))):
        assert isinstance(error, DataFileError)
        assert isinstance(error, EnvError)
        assert isinstance(error, ValueError)
        assert (str(error), error.path, error.line) == ("Env 0 raised", path, 7)
    of_no_line: Any = EnvError.named(name)(
        "", type_name=name, remote_message=str(data_file_error("items.json", None, "no: none"))
    )
    assert (of_no_line.path, of_no_line.line) == ("items.json", None)


@given(st.lists(st.text(max_size=3), max_size=40), st.floats(0.0, 1.0))
def test_halves_share_no_key_and_lose_nothing(items: list[str], share: float) -> None:
    train, val = (train_or_val_items(items, str, share, training=training) for training in (True, False))
    if share == 0.0 or len(set(items)) <= 1:
        assert train == val == tuple(items)
        return
    assert set(train).isdisjoint(val)
    assert sorted([*train, *val]) == sorted(items)
    assert train
    assert val
    assert abs(len(set(val)) - share * len(set(items))) <= 1


def test_a_key_stays_where_it_is_when_others_come() -> None:
    few, many = [str(n) for n in range(100)], [str(n) for n in range(200)]
    kept = set(train_or_val_items(few, str, 0.1, training=False)) & set(
        train_or_val_items(many, str, 0.1, training=False)
    )
    assert len(kept) >= 5
