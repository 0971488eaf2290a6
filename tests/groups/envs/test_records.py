from __future__ import annotations

import contextlib
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parallel_envs.errors import EnvError, ParallelEnvsError
from parallel_envs.groups.envs.records import DataFileError, data_file_error, read_entries, train_val_split

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
few = settings(max_examples=30)


def written(folder: Path, name: str, content: str) -> str:
    (folder / name).write_text(content, encoding="utf-8")
    return str(folder / name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("records")


@few
@given(st.lists(VALUES, max_size=5), st.data())
def test_arrays_and_lines_are_read_entry_by_entry_and_a_cut_is_told(
    folder: Path, values: list[Any], data: st.DataObject
) -> None:
    dense, indented = json.dumps(values), json.dumps(values, indent=1)
    for content in (dense, indented):
        assert [entry.value for entry in read_entries(written(folder, "array.json", content))] == values
    rows = list(map(json.dumps, values))
    for name, content, lines in (
        ("lines.json", "[\n" + ",\n".join(rows) + "]\n", range(2, 9)),
        ("lines.jsonl", "\n\n".join(rows), range(1, 19, 2)),
    ):
        found = read_entries(written(folder, name, content))
        assert [(entry.value, entry.line) for entry in found] == list(zip(values, lines, strict=False))
    path = written(folder, "cut.json", indented[: data.draw(st.integers(0, len(indented) - 1))])
    with pytest.raises(DataFileError, match=r"cut\.json") as caught:
        list(read_entries(path))
    assert 1 <= (caught.value.line or 0) <= indented.count("\n") + 1


@few
@given(st.dictionaries(st.text(max_size=5), VALUES, max_size=5), st.lists(VALUES, min_size=1, max_size=5))
def test_objects_are_read_key_by_key_and_lists_item_by_item(
    folder: Path, values: dict[str, Any], items: list[Any]
) -> None:
    path = written(folder, "object.json", json.dumps(values, indent=2))
    assert {entry.key: entry.value for entry in read_entries(path)} == values
    rows = ",\n".join(map(json.dumps, items))
    path = written(folder, "lists.json", f'{{"a": [\n{rows}\n],\n"b": [\n{rows}\n],"c": []}}')
    told = [(entry.key, entry.value, entry.line) for entry in read_entries(path, lists="things")]
    assert told == [
        *(("a", item, line) for line, item in enumerate(items, start=2)),
        *(("b", item, line) for line, item in enumerate(items, start=len(items) + 4)),
    ]


@few
@given(st.text(max_size=30), st.sampled_from(["any.json", "any.jsonl"]))
def test_any_text_is_read_or_refused(folder: Path, content: str, name: str) -> None:
    with contextlib.suppress(DataFileError):
        list(read_entries(written(folder, name, content.encode(errors="replace").decode())))


def test_a_mistake_is_named_with_its_line(tmp_path: Path) -> None:
    for content, words in (
        ('[\n{"a": 1},\n{"a": }\n]', "line 3: this is not JSON"),
        ('[\n{"a": 1}\n{"a": 2}\n]', r"line 3: '\{' stands where one of ',\]' is wanted"),
        ("[\n1,\n2", "line 3: 'the end' stands where"),
        ('{"a": 1}\n{"a": 2}', r"line 2: '\{' stands behind the end. A file with an entry in each line is named"),
        ("{\n1: 2}", "line 2: 1 is no key"),
        ('"text"', "line 1: '\"' stands where one of"),
        ("[" * 100_000, "line 1: this cannot be read"),
        ("[" + "9" * 5000 + "]", "line 1: this cannot be read"),
        ('{\n"B1":\n{"a": 1},\n"B2":\n{"a": }\n}', "line 5: "),
        ('{"B1": [{"a": 1},\n{"a": 2}\n],\n"B2" []}', "line 4: "),
        ('{\n"a": [],\n"b":\n5}', "line 4: this is not a list of things"),
    ):
        path = written(tmp_path, "broken.json", content)
        with pytest.raises(DataFileError, match=rf"broken\.json, {words}"):
            list(read_entries(path, lists="things" if "things" in words else None))
    with pytest.raises(DataFileError, match=r"lines\.jsonl, line 3: this is not JSON"):
        list(read_entries(written(tmp_path, "lines.jsonl", '\n{"a": 1}\n{"a":\n')))
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataFileError, match=r"bytes\.json: cannot be read"):
        list(read_entries(str(tmp_path / "bytes.json")))


def test_no_more_is_read_than_wanted_and_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    much = written(tmp_path, "much.json", "[1, 2, 3, broken")
    assert [entry.value for entry in read_entries(much, 3)] == [1, 2, 3]
    (tmp_path / "marked.json").write_bytes(b"\xef\xbb\xbf[1]")
    assert [entry.value for entry in read_entries(str(tmp_path / "marked.json"))] == [1]
    [entry] = read_entries(written(tmp_path, "nan.json", '[{"a": NaN, "b": null, "c": 0.0}]'))
    assert [entry.has(name) for name in "abcd"] == [False, False, True, False]


@pytest.mark.parametrize(
    ("path", "line"),
    [("items.json", None), ("C:\\data\\items.json", 7), ("a: b/items, line.json", 7), ("\u00fc \n.json", 7)],
)
def test_errors_belong_to_the_package_and_are_told_again_by_their_text(path: str, line: int | None) -> None:
    name = f"{DataFileError.__module__}.{DataFileError.__qualname__}"
    original = data_file_error(path, line, "`a`: it is empty, as line 3: is.")
    again: Any = EnvError.named(name)("Env 0 raised", type_name=name, remote_message=str(original))
    for error in (original, again, pickle.loads(pickle.dumps(again))):
        kinds = (DataFileError, ParallelEnvsError, ValueError, *([EnvError] if error is not original else []))
        assert all(isinstance(error, kind) for kind in kinds)
        assert (str(error), error.path, error.line) == (str(original if error is original else again), path, line)


@few
@given(st.lists(st.text(max_size=3), max_size=40), st.floats(0.0, 1.0))
def test_train_and_val_share_no_key_and_lose_nothing(items: list[str], share: float) -> None:
    train, val = train_val_split(items, str, share)
    if share == 0.0 or len(set(items)) <= 1:
        assert train == val == items
        return
    assert set(train).isdisjoint(val)
    assert sorted([*train, *val]) == sorted(items)
    assert min(len(train), len(val)) > 0
    assert abs(len(set(val)) - share * len(set(items))) <= 1
