"""Checkpoints: all of a state comes back, none of a bad one, and a process that is killed leaves the old or the new."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import re
import shutil
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from hypothesis import example, given
from hypothesis import strategies as st

from parallel_envs.learners.checkpoint import (
    BadCheckpoint,
    check_fits,
    export_agent,
    folder_names,
    frozen,
    load_agent,
    load_checkpoint,
    replace_agent,
    save_agent,
    save_checkpoint,
)  # fmt: skip
from parallel_envs.learners.run_folder import Run, newest_checkpoint
from parallel_envs.rollouts.replay import ReplayBuffer
from parallel_envs.testing import assert_same_batch

NUM_KILLS = 8


def state(number: int = 0, width: int = 4) -> dict[str, Any]:
    generator = np.random.default_rng(number)
    arrays = {
        "weights": np.full(width, number, np.float32),
        "steps": np.array(number),
        "flags": np.array([True, False]),
        "turned": np.arange(6, dtype=np.int16).reshape(2, 3).T,
        "empty": np.zeros((0, 3)),
    }
    config, counters = {"hidden": [width, width], "learning_rate": 0.1}, {"updates": number}
    return {"config": config, "arrays": arrays, "counters": counters, "generator": generator.bit_generator.state}


def buffered(number: int) -> dict[str, Any]:
    buffer = ReplayBuffer(Box(-1, 1, (2,)), Discrete(3), 8, 2)
    one, flags = np.ones((2, 2)), np.zeros(2, bool)
    for _ in range(number):
        buffer.add(one, np.ones(2, int), np.ones(2), flags, flags, one, ~flags)
    return {**state(number), "memory": buffer.state()}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("original") / "checkpoint"
    save_checkpoint(path, {"red": state(1), "blue": buffered(2), 7: state(3, width=2)}, {"seed": 5})
    return path


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    """A checkpoint of three agents."""
    return Path(shutil.copytree(original, tmp_path / "checkpoint"))


def files_in(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_a_checkpoint_brings_back_every_agent_from_a_folder_of_its_own_without_pickle(folder: Path) -> None:
    loaded = load_checkpoint(folder)
    assert_same_batch(loaded.agents, {"red": state(1), "blue": buffered(2), 7: state(3, width=2)})
    assert loaded.about == {"seed": 5}
    assert {path.name for path in folder.iterdir()} == {"checkpoint.json", "red", "blue", "7"}
    assert {path.name for path in (folder / "blue").iterdir()} == {"agent.json", "arrays.safetensors", "memory.npz"}


def test_a_new_checkpoint_takes_the_place_of_the_old_one_and_of_what_a_killed_process_left(folder: Path) -> None:
    for name in (f".{folder.name}.new", f".{folder.name}.k3d_9.new"):
        folder.with_name(name).mkdir()
        (folder.with_name(name) / "agent.json").write_text(json.dumps({}))
    save_checkpoint(folder, {"red": state(9)})
    assert list(load_checkpoint(folder).agents) == ["red"]
    assert list(folder.parent.iterdir()) == [folder]


def test_another_architecture_is_refused_and_named(folder: Path) -> None:
    before, other = files_in(folder), state()
    with pytest.raises(BadCheckpoint, match=r"agent 'red'.*weights: float32\[2\] stored, float32\[4\] here.*hidden"):
        replace_agent(folder, "red", load_agent(folder, 7))
    for no_state in (lambda: replace_agent(folder, "red", 3), lambda: frozen({})):  # type: ignore[arg-type]  # likewise
        with pytest.raises(BadCheckpoint, match="state"):
            no_state()
    assert files_in(folder) == before
    other["arrays"]["carry"] = np.zeros((8, 4))
    check_fits(other, state(), "red", "somewhere")  # what an agent remembers just now is no part of it
    del other["arrays"]["flags"]
    with pytest.raises(BadCheckpoint, match=r"flags: nothing stored, bool\[2\] here"):
        check_fits(other, state(), "red", "somewhere")


@pytest.mark.parametrize("file", ["agent.json", "arrays.safetensors", "memory.npz"])
def test_a_damaged_or_missing_file_is_named_with_its_agent(folder: Path, file: str) -> None:
    path = folder / "blue" / file
    whole = path.read_bytes()
    for data in (b"", whole[:-7], b'{"some": "json"}', whole[:-7] + b"x" + whole[-6:], None):
        if data is None:
            path.unlink()
        else:
            path.write_bytes(data)
        with pytest.raises(BadCheckpoint, match=f"agent 'blue' cannot be read .*{file}"):
            load_checkpoint(folder)
        assert_same_batch(load_agent(folder, "red"), state(1))


def as_earlier_versions_wrote_it(path: Path) -> None:
    """Take the checksum out of a JSON file, and have it say an earlier format."""
    told = json.loads(path.read_text())
    del told["checksum_of_this_file"]
    earlier = {"checkpoint.json": "parallel_envs checkpoint 1", "agent.json": "parallel_envs agent 2"}
    path.write_text(json.dumps({**told, "format": earlier[path.name]}))


def test_checkpoints_of_earlier_versions_and_other_layouts_are_read(folder: Path) -> None:
    whole = load_checkpoint(folder)
    for path in folder.rglob("*.json"):
        path.write_text(json.dumps(json.loads(path.read_text()), sort_keys=True))
    assert_same_batch(load_checkpoint(folder).agents, whole.agents)
    for path in folder.rglob("*.json"):
        as_earlier_versions_wrote_it(path)
    old = load_checkpoint(folder)
    assert_same_batch(old.agents, whole.agents)
    assert old.about == whole.about


@pytest.mark.parametrize("file", ["checkpoint.json", "blue/agent.json"])
def test_no_letter_and_no_digit_of_a_json_file_changes_unnoticed(file: str, folder: Path) -> None:
    path = folder / file
    text = path.read_text()
    places = [place for place, letter in enumerate(text) if letter.isalnum()]
    for place in places[:: max(1, len(places) // 300)]:
        other = "8" if text[place] != "8" else "3"
        path.write_text(text[:place] + other + text[place + 1 :])
        with pytest.raises(BadCheckpoint, match=re.escape(path.name)):
            load_checkpoint(folder)
    path.write_text(text)
    load_checkpoint(folder)


def test_files_of_another_agent_are_not_taken_for_its_own(folder: Path) -> None:
    (folder / "blue/arrays.safetensors").write_bytes((folder / "7/arrays.safetensors").read_bytes())
    with pytest.raises(BadCheckpoint, match=r"agent 'blue'.*not the file that was written"):
        load_checkpoint(folder)
    shutil.rmtree(folder / "red")
    shutil.copytree(folder / "7", folder / "red")
    for act in (lambda: load_checkpoint(folder), lambda: load_agent(folder, "red")):
        with pytest.raises(BadCheckpoint, match=r"agent 'red' cannot .*red, which holds agent 7\. .*replace_agent"):
            act()
    assert_same_batch(load_agent(folder / "red", "red"), state(3, width=2))


@given(st.lists(st.text("aA-0123. %/ü", max_size=4) | st.integers(-3, 12), unique=True))
@example(["a", "A", "a-2"])
def test_no_two_agents_share_a_folder(agents: list[Any]) -> None:
    names = folder_names(agents)
    assert list(names) == agents
    assert len({name.casefold() for name in names.values()}) == len(agents)


def test_names_that_no_folder_can_have_are_kept_apart_and_what_no_file_can_name_is_refused(tmp_path: Path) -> None:
    agents = ["a/b", "..", ".", "é ü", "", "%", "Red", "red", "RED", 1, "1", "x" * 300, "x" * 301, "a-2", "A", "a"]
    states: dict[Any, Any] = {agent: state(number) for number, agent in enumerate(agents)}
    save_checkpoint(tmp_path / "odd", states)
    assert_same_batch(load_checkpoint(tmp_path / "odd").agents, states)
    refused: list[tuple[Any, str]] = [
        (("a", 1), "words or whole numbers"), (True, "words or whole"), ("a\ud800", "half a character")
    ]  # fmt: skip
    for agent, why in refused:
        with pytest.raises(TypeError, match=rf"cannot be named in a file.* {why}"):
            save_checkpoint(tmp_path / "checkpoint", {agent: state()})
    assert not (tmp_path / "checkpoint").exists()


def everything(number: int) -> dict[Any, Any]:
    return {"red": state(number), "blue": buffered(number % 5) | {"counters": {"updates": number}}}


def save_over_and_over(folder: Path, numbers: Iterable[int], saved: Any = None) -> None:
    """In place of one another, or in a run, if there is a folder for it."""
    with Run(folder, keep_checkpoints=2) if folder.name == "run" else nullcontext() as run:
        for number in numbers:
            save = partial(save_checkpoint, agents=everything(number), about={"number": number})
            save(folder) if run is None else run.save(number, save)
            if saved is not None:
                saved.send_bytes(b".")


@pytest.mark.parametrize("name", ["saved", "run"])
def test_a_killed_process_leaves_a_whole_checkpoint(name: str, tmp_path: Path) -> None:
    """At any moment of its third save or a later one, or before its first."""
    path, numbers, began, source = tmp_path / name, [0], time.monotonic(), np.random.default_rng(0)
    (tmp_path / "run").mkdir()
    save_over_and_over(path, [0])
    one = time.monotonic() - began
    for number in range(NUM_KILLS):
        reader, writer = multiprocessing.Pipe(duplex=False)
        arguments = path, itertools.count(numbers[-1] + 1), writer
        child = multiprocessing.get_context("fork").Process(target=save_over_and_over, args=arguments)
        child.start()
        writer.close()
        with reader:
            for _ in range(2 if number else 0):
                reader.recv_bytes()
            child.join(source.uniform(0, one))
            child.kill()
            child.join()
        checkpoint = load_checkpoint(newest_checkpoint(path) or path)
        numbers.append(int(checkpoint.about["number"]))
        assert_same_batch(checkpoint.agents, everything(numbers[-1]))  # all that is in it says this number
    assert all(later >= earlier + 2 for earlier, later in itertools.pairwise(numbers[1:]))


def test_a_place_that_is_no_checkpoint_is_not_written_over_and_a_link_is_followed(folder: Path, tmp_path: Path) -> None:
    other, file = tmp_path / "folder", tmp_path / "file"
    other.mkdir()
    (other / "thesis.tex").write_text("words")
    file.write_text("words")
    for taken, kind in ((Path(), ValueError), (other, FileExistsError), (file, FileExistsError)):
        for save in (
            partial(save_checkpoint, agents={"red": state()}),
            partial(save_agent, agent="red", state=state()),
        ):
            with pytest.raises(kind, match=r"names no folder that could be written anew|not written over"):
                save(taken)
    assert files_in(other) == {"thesis.tex": b"words"}
    link = tmp_path / "link"
    link.symlink_to(folder)
    save_checkpoint(link, {"red": state(9)})
    assert_same_batch(load_checkpoint(folder).agents, {"red": state(9)})
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint", "link", "folder", "file"}


def test_one_agent_is_exported_loaded_by_its_name_and_put_in_the_place_of_another(folder: Path, tmp_path: Path) -> None:
    before = files_in(folder)
    export_agent(folder, "blue", tmp_path / "exported")
    for path in (tmp_path / "exported", folder / "blue"):
        assert_same_batch(load_agent(path), buffered(2))
    acts: list[tuple[Callable[[], object], type[Exception], str]] = [
        (lambda: export_agent(folder, "red", folder / "green"), FileExistsError, "within a checkpoint.*replace_agent"),
        (lambda: load_agent(folder), BadCheckpoint, r"holds several agents\. Name one: 'red', 'blue', 7"),
        (lambda: load_agent(folder, "green"), BadCheckpoint, r"no agent 'green'\. It holds 'red', 'blue', 7"),
        (lambda: export_agent(folder, "green", tmp_path / "green"), BadCheckpoint, "no agent 'green'"),
        (lambda: replace_agent(folder, "green", state()), BadCheckpoint, "no agent 'green'"),
        (lambda: load_checkpoint(tmp_path), FileNotFoundError, r"checkpoint\.json"),
    ]
    for act, kind, words in acts:
        with pytest.raises(kind, match=words):
            act()
    assert (files_in(folder), (tmp_path / "green").exists()) == (before, False)
    replace_agent(folder, "red", frozen(load_agent(folder, "blue")))
    loaded = load_checkpoint(folder)
    assert loaded.agents["red"]["counters"] == {"updates": 2, "frozen": True}
    assert_same_batch(loaded.agents["red"]["arrays"], state(2)["arrays"])
    assert_same_batch(loaded.agents["blue"], buffered(2))
    assert loaded.about == {"seed": 5}
    assert frozen(loaded.agents["red"], is_frozen=False)["counters"]["frozen"] is False
