"""A policy that has changed is noticed, and one that has not is not."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from parallel_envs.evaluation import BadEvaluation, Mission, evaluate
from parallel_envs.evaluation.checkpoints import fingerprint
from parallel_envs.policies import PolicySpec
from tests.evaluation.stages import Counting, Course

MISSION = Mission(name="short", env=Course)
CAREFUL = """
class Careful:
    def step(self, observation):
        return {action}
    def load(self, path):
        pass
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that modules are imported from; those that were are forgotten again."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "careful_agents", raising=False)
    return tmp_path


def test_a_module_that_was_edited_is_not_resumed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = folder / "careful_agents.py"
    source.write_text(CAREFUL.format(action=0))
    begun = evaluate([MISSION], "careful_agents:Careful", 1)
    assert evaluate([MISSION], "careful_agents:Careful", 2, resume=begun).episodes[:1] == begun.episodes
    source.write_text(CAREFUL.format(action=1))
    with pytest.raises(BadEvaluation, match="policy 'careful_agents:Careful' whose code or files have changed"):
        evaluate([MISSION], "careful_agents:Careful", 2, resume=begun)


def test_a_run_that_was_trained_on_is_another(tmp_path: Path) -> None:
    newest = tmp_path / "checkpoints" / "7" / "weights"
    newest.parent.mkdir(parents=True)
    newest.write_bytes(b"one")
    (tmp_path / "metrics.jsonl").write_text("1")
    spec = PolicySpec("random", str(tmp_path))
    before = fingerprint(spec)
    (tmp_path / "metrics.jsonl").write_text("2")
    assert fingerprint(spec) == before != fingerprint(PolicySpec("random"))
    newest.write_bytes(b"two")
    changed = fingerprint(spec)
    newest.rename(newest.with_name("others"))
    assert len({before, changed, fingerprint(spec)}) == 3


def test_results_that_are_written_beside_the_weights_do_not_count(folder: Path) -> None:
    (folder / "careful_agents.py").write_text(CAREFUL.format(action=0))
    data, file = folder / "data", folder / "data" / "results.json"
    data.mkdir()
    (data / "weights").write_bytes(b"one")
    spec = f"class=careful_agents:Careful,data={data}"
    begun = evaluate([MISSION], spec, 1, save=file)
    assert evaluate([MISSION], spec, 2, resume=file, save=file).episodes[:1] == begun.episodes
    (data / "weights").write_bytes(b"two")
    with pytest.raises(BadEvaluation, match="whose code or files have changed"):
        evaluate([MISSION], spec, 3, resume=file, save=file)


def test_functions_and_objects_are_known_by_their_code() -> None:
    first: list[Any] = [
        lambda observation: 0,
        lambda observation: [0 for _ in "a"],
        Counting(),
        functools.partial(max, 1),
    ]
    again: list[Any] = [
        lambda observation: 0,
        lambda observation: [0 for _ in "a"],
        Counting(),
        functools.partial(max, 1),
    ]
    other: list[Any] = [lambda observation: 1, lambda observation: [1 for _ in "a"], Changed(), None]
    digests = [[fingerprint(one) for one in ones] for ones in (first, again, other)]
    assert digests[0] == digests[1]
    assert digests[0][3] is None
    assert all(one != two for one, two in zip(digests[0][:3], digests[2][:3], strict=True))


class Changed(Counting):
    def step(self, observation: Any) -> Any:
        return observation


def test_a_digest_is_the_same_in_every_process() -> None:
    program = "import sys; sys.path.insert(0, {root!r}); from tests.evaluation.test_digests import told; print(told())"
    command = [sys.executable, "-c", program.format(root=str(Path(__file__).parents[2]))]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == told()


def told() -> str:
    return str(fingerprint(lambda observation: observation in {"a", "b", "c", "d"}))


def test_a_file_from_before_there_were_digests_can_be_resumed(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    begun = evaluate([MISSION], {"it": Counting()}, 1, save=file)
    document = json.loads(file.read_text())
    del document["settings"]["policies"]["it"]["digest"]
    file.write_text(json.dumps(document))
    assert evaluate([MISSION], {"it": Counting()}, 2, resume=file).episodes[:1] == begun.episodes


@pytest.mark.parametrize(
    ("name", "value"),
    [("missions", None), ("missions", [1]), ("policies", None), ("policies", {"it": 3}), ("policies", [])],
)
def test_settings_that_are_damaged_are_refused(tmp_path: Path, name: str, value: Any) -> None:
    file = tmp_path / "results.json"
    evaluate([MISSION], {"it": Counting()}, 1, save=file)
    document = json.loads(file.read_text())
    document["settings"][name] = value
    file.write_text(json.dumps(document))
    with pytest.raises(BadEvaluation, match=name):
        evaluate([MISSION], {"it": Counting()}, 2, resume=file)


@pytest.mark.parametrize(
    ("name", "value"), [("length", "x"), ("seed", 1.5), ("success", 3), ("returns", [1]), ("attempts", True)]
)
def test_records_that_are_damaged_are_refused(tmp_path: Path, name: str, value: Any) -> None:
    file = tmp_path / "results.json"
    evaluate([MISSION], {"it": Counting()}, 1, save=file)
    document = json.loads(file.read_text())
    document["episodes"][0][name] = value
    file.write_text(json.dumps(document))
    with pytest.raises(BadEvaluation, match=f"damaged.*{name} is"):
        evaluate([MISSION], {"it": Counting()}, 2, resume=file)
