"""Files that were damaged, or that somebody wrote by hand: every reader raises an error of its own, and no other."""

from __future__ import annotations

import copy
import json
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

pytest.importorskip("torch")

from parallel_envs.evaluation import BadEvaluation, EvaluationResult, evaluate, missions_of
from parallel_envs.evaluation.comparison import compare, cross_play, elo_ratings, paired_scores, pairings_of
from parallel_envs.evaluation.recordings import read_episode
from parallel_envs.evaluation.records import BadDocument
from parallel_envs.groups.config import read_settings as read_groups
from parallel_envs.groups.failures import BadSettings as BadGroups
from parallel_envs.learners.agent import configs_by_name
from parallel_envs.learners.checkpoint import BadCheckpoint, load_checkpoint, save_checkpoint
from parallel_envs.learners.config import BadSettings, algorithm_configs, load_settings
from parallel_envs.learners.meta.config import load_settings as load_meta_settings
from parallel_envs.learners.run_folder import BadRun, read_choice, read_metrics
from parallel_envs.learners.train import loop_options
from parallel_envs.policies import PolicySpec
from parallel_envs.rollouts.replay import read_archive, write_archive
from tests.cli.test_tool import command
from tests.learners.test_checkpoints import as_earlier_versions_wrote_it, state

BOMB = "a: &a [1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{name}: &{name} [{','.join(['*' + before] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
TEXTS = {
    "deep": "[" * 10_000,
    "deep JSON": '{"a":' * 10_000,
    "recursive": "&a [*a]",
    "recursive block": "missions: &a {x: *a}\ncustom_envs: *a\nenv: *a\n",
    "bomb": BOMB,
    "bomb inside": BOMB.replace("\n", "\n  ").replace("a:", "env_kwargs:\n  a:", 1),
    "empty": "",
    "number": "3",
    "dates": "env: 2024-01-01\ntotal_steps: 2024-01-01\nmissions: {2024-01-01: {env: 2024-01-01}}\nseed: 2024-01-01\n",
    "odd names": "1: 2\ntrue: 3\nnull: 4\n2.5: 5\n2024-01-01: 6\n",
    "digits": "seed: " + "9" * 5_000,
    "binary": "seed: !!binary aGk=",
    "surrogate": 'env: "\\ud800"\ntotal_steps: 3\n',
    "infinity": "total_steps: .inf\nseed: .nan\nenv: CartPole-v1\n",
    "empty binary number": "seed: 0b_",
    "zero byte": "env: a\x00b",
}

TRAIN: dict[str, Any] = {
    "env": "CartPole-v1",
    "env_kwargs": {"x": [1, {"y": 2}]},
    "num_envs": 2,
    "total_steps": 100,
    "seed": 5,
    "folder": "run",
    "algorithm": {"name": "ppo", "hidden": [8, 8], "learning_rate": 0.1},
    "agents": {"agent_0": {"name": "dqn"}},
    "minibatch": [1, 2],
    "queue": 3,
    "parallel": {"enabled": True, "async_learning": "free"},
}
META: dict[str, Any] = {
    "env": {"env_name": "Bandit-v0", "max_rollouts_per_task": 2, "num_train_tasks": 3, "num_eval_tasks": 2},
    "train": {"num_iters": 2, "last_learning_rate": 0.5},
    "policy": {"arch": "memory", "algorithm": {"name": "ppo"}, "memory": {"name": "gru"}},
    "seed": 3,
}
GROUPS: dict[str, Any] = {
    "seed": {"train": 10000, "val": 123},
    "es_manager": {
        "use_multiprocessing": False,
        "train": {"env_groups": 1, "group_size": 2, "env_configs": {"tags": ["Small"], "n_groups": [1]}},
    },
    "custom_envs": {"Small": {"env_type": "bandit", "max_actions_per_traj": 3, "env_config": None}},
}
MISSIONS: dict[str, Any] = {
    "missions": {"cart": {"env": "CartPole-v1", "kwargs": {"a": 1}, "variants": {"b": {"c": 2}}}},
    "sets": {"easy": ["cart", "cart:*"]},
}

ODD: list[Any] = [
    *(None, True, -1, 0, 2**70, 0.5, math.nan, math.inf, -1e308, "", "x", "9" * 400, "n" * 300, [], {}, [[]]),
    *({"": None}, {"x": {"y": []}}, "2024-01-01", "nan", "1e999", "../..", "\x00", [1] * 50),
]


def places_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of everything in a document of dicts and lists."""
    if path:
        yield path
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in entries:
        yield from places_in(inner, (*path, key))


def changed(document: Any, draw: random.Random) -> Any:
    """The document with something in it replaced, removed or renamed."""
    document = copy.deepcopy(document)
    *path, last = draw.choice(list(places_in(document)))
    inside = document
    for key in path:
        inside = inside[key]
    how = draw.randrange(6)
    if how == 0:
        del inside[last]
    elif how == 1 and isinstance(inside, dict):
        inside[f"{last}x"] = inside.pop(last)
    else:
        inside[last] = draw.choice(ODD)
    return document


def damaged(data: bytes, draw: random.Random) -> bytes:
    """The bytes with some cut off, flipped, doubled or left out."""
    start = draw.randrange(len(data))
    end = min(start + draw.choice((1, 1, 2, 10, 100)), len(data))
    cut = data[:start] + draw.choice((b"", bytes(draw.randrange(256) for _ in range(end - start)))) + data[end:]
    return draw.choice((data[:start], cut, data[:end] + data[start:]))


@pytest.fixture(params=[8, pytest.param(150, marks=pytest.mark.slow)])
def num_damages(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def try_all(read: Callable[[Path], object], path: Path, document: Any, own: Any, write: Any, num_damages: int) -> None:
    """Have the reader read the document, then damaged ones: it returns, or raises one of its own errors."""
    path.write_bytes(write(document))
    read(path)
    draw = random.Random(7)
    texts = [write(changed(document, draw)) for _ in range(num_damages)]
    texts += [damaged(write(document), draw) for _ in range(num_damages)]
    for data in (*texts, *map(str.encode, TEXTS.values())):
        check(read, path, data, own)


def check(read: Callable[[Path], object], path: Path, data: bytes, own: Any) -> None:
    path.write_bytes(data)
    text = ""
    try:
        read(path)
    except own as error:
        text = str(error)
    except Exception as error:
        raise AssertionError(f"{type(error).__name__} of {data[:2_000]!r}") from error
    assert len(text) < 5_000, text[:1_000]


def as_yaml(document: Any) -> bytes:
    return yaml.safe_dump(document, sort_keys=False).encode()


def as_json(document: Any) -> bytes:
    return json.dumps(document, indent=1).encode()


def as_line(document: Any) -> bytes:
    return json.dumps(document).encode() + b"\n"


def train_settings(path: Path) -> None:
    settings = load_settings(path)
    as_yaml(settings.described()), as_json(settings.described())
    algorithm_configs(settings, ["agent_0"], configs_by_name())
    try:
        loop_options(settings)
    except ValueError as error:  # as `build_learners` does
        raise BadSettings(str(error)) from error


def result(path: Path) -> None:
    found = EvaluationResult.from_json(path)
    for write in (found.to_json, found.to_csv, found.to_table, found.to_yaml):
        write()
    try:
        ours, theirs = paired_scores(found, found)
        compare(ours, theirs)
        cross_play(pairings_of(found))
        elo_ratings(pairings_of(found))
    except ValueError as error:  # they cannot be compared: `parallel-envs compare` says so
        raise BadDocument(str(error)) from error


def resumed(path: Path) -> None:
    evaluate("mpe2.simple_spread_v3", ["random", "noop"], episodes=2, max_steps=3, resume=path)


METRICS: dict[str, Any] = {"update": 1, "steps": 3, "agents": {"a": {"loss": 0.5}}}
CHOICE = {"update_mode": "fused", "since_steps": 3}
POLICY = {"class": "parallel_envs.policies:RandomAgent", "kwargs": {"seed": 3}}
READERS: dict[str, tuple[Callable[[Path], object], Any, type[Exception], Any]] = {
    "train.yaml": (train_settings, TRAIN, BadSettings, as_yaml),
    "meta.yaml": (lambda path: as_yaml(load_meta_settings(path).described()), META, BadSettings, as_yaml),
    "groups.yaml": (read_groups, GROUPS, BadGroups, as_yaml),
    "missions.yaml": (lambda path: missions_of(str(path)), MISSIONS, BadEvaluation, as_yaml),
    "policy.json": (lambda path: PolicySpec.parse(str(path.parent)), POLICY, ValueError, as_json),
    "result.json": (result, None, BadDocument, as_json),
    "resumed.json": (resumed, None, BadEvaluation, as_json),
    "metrics.jsonl": (lambda path: read_metrics(path.parent), METRICS, BadRun, as_line),
    "chosen.json": (lambda path: read_choice(path.parent, 10**9), CHOICE, BadRun, as_json),
}


@pytest.mark.parametrize("name", READERS)
def test_a_reader_raises_errors_of_its_own_only(name: str, document: Any, num_damages: int, tmp_path: Path) -> None:
    read, content, own, write = READERS[name]
    number = num_damages // (1 + 3 * (read is resumed))
    try_all(read, tmp_path / name, content or document, own, write, number)


@pytest.fixture(scope="module")
def document() -> Any:
    """The result of two policies that met in one evaluation, as a file has it."""
    result = evaluate("mpe2.simple_spread_v3", ["random", "noop"], episodes=2, max_steps=3)
    return json.loads(result.to_json())


def test_checkpoints(num_damages: int, tmp_path: Path) -> None:
    folder, draw = tmp_path / "checkpoint", random.Random(3)
    save_checkpoint(folder, {"red": state(1)}, {"seed": 3})
    own, read = (BadCheckpoint, FileNotFoundError), lambda _: load_checkpoint(folder)
    for file in (folder / "checkpoint.json", folder / "red/agent.json"):
        for is_new in (True, False):
            whole = file.read_bytes()
            try_all(read, file, json.loads(whole), own, as_json, num_damages)
            file.write_bytes(whole)
            if is_new:
                as_earlier_versions_wrote_it(file)
    whole = (folder / "red/arrays.safetensors").read_bytes()
    for _ in range(num_damages):
        check(read, folder / "red/arrays.safetensors", damaged(whole, draw), own)


def test_stored_arrays(num_damages: int, tmp_path: Path) -> None:
    path, draw = tmp_path / "arrays.npz", random.Random(5)
    write_archive(path, {"kind": "parallel_envs episode", "schema": 1}, {"a": np.arange(9.0)})
    whole = path.read_bytes()
    for _ in range(2 * num_damages):
        data = damaged(whole, draw)
        check(read_archive, path, data, ValueError)
        check(read_episode, path, data, BadDocument)


QUICK = ("bomb", "surrogate")
OTHERS = [pytest.param(name, marks=pytest.mark.slow) for name in TEXTS if name not in QUICK]


@pytest.mark.parametrize("name", [*QUICK, *OTHERS])
def test_every_command_says_what_is_wrong_in_a_few_lines(name: str, tmp_path: Path) -> None:
    for file in ("bad.yaml", "bad.json", "settings.yaml", "policy.json"):
        (tmp_path / file).write_text(TEXTS[name])
    (tmp_path / "run").mkdir()
    bad_yaml, bad_json = str(tmp_path / "bad.yaml"), str(tmp_path / "bad.json")
    cart = ("-m", "CartPole-v1", "-e", "1")
    for words in (
        ("train", bad_yaml),
        ("train", "--resume", str(tmp_path)),
        ("eval", "-m", bad_yaml, "-p", "random"),
        ("eval", *cart, "-p", str(tmp_path)),
        ("eval", *cart, "-p", "random", "--resume", bad_json),
        ("compare", bad_json),
        ("compare", bad_json, bad_json),
        ("tasks", bad_yaml),
    ):
        done = command(*words)
        assert done.exit_code == 2, (words, done.output, done.exception)
        assert 0 < len(done.stderr.splitlines()) < 25, (words, done.stderr)
        assert "Traceback" not in done.stderr


LONG = "n" * 300


LONG_NAMES = [
    *(("train", f"{LONG}.yaml"), ("train", "--resume", LONG), ("train", "good.yaml", f"folder={LONG}")),
    *(("train", "good.yaml", f"env={LONG}"), ("train", "good.yaml", ".".join("a" * 3_000) + "=1")),
    *(("eval", "-m", mission, "-p", "random") for mission in (LONG, f"{LONG}.yaml")),
    ("eval", "-m", "CartPole-v1", "-p", LONG),
    *(("eval", "-m", "CartPole-v1", "-p", "random", *words) for words in (("-o", f"{LONG}.json"), ("--resume", LONG))),
    ("eval", "-m", "CartPole-v1", "-p", "random", "--save-episodes", LONG),
    *(("compare", LONG), ("tasks", LONG)),
]


def test_names_that_are_too_long_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.yaml").write_bytes(as_yaml({"env": "CartPole-v1", "total_steps": 16, "backend": "serial"}))
    for words in LONG_NAMES:
        done = command(*words)
        assert done.exit_code == 2, (words, done.output, done.exception)
        assert 0 < len(done.stderr.splitlines()) < 25
        assert [path.name for path in tmp_path.iterdir()] == ["good.yaml"]
