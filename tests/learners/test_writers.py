"""Metrics in W&B, MLflow, Trackio and writers of one's own: complete, in one run, and never in the training's way.

Packages are played by modules of their interface (`FAKES`); the real ones, where they are installed, are tried in
their offline modes at the end.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import sqlite3
import struct
import subprocess
import sys
import threading
import types
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
import yaml

from parallel_envs.errors import MissingExtra
from parallel_envs.learners import writers as module
from parallel_envs.learners.config import BadSettings, WritersBlock, load_settings, read_settings
from parallel_envs.learners.run_folder import Run, read_metrics
from parallel_envs.learners.train import begin
from parallel_envs.learners.writers import RunFacts, Writer, make_writers
from tests.learners.command_lines import Train, command
from tests.learners.test_outcomes import BANDITS, SMALL, commands_in

ROOT = Path(__file__).parents[2]
SETTINGS = {"env": "CartPole-v1", "seed": 3, "algorithm": {"name": "ppo", "hidden": [64, 64]}}


class Memory(Writer):
    """Remembers what it is given."""

    def __init__(self) -> None:
        self.run: RunFacts | None = None
        self.lines: list[tuple[int, dict[str, float]]] = []
        self.status = ""

    def begin(self, run: RunFacts) -> str | None:
        self.run = run
        return run.run_id or "first"

    def write(self, steps: int, numbers: Mapping[str, float]) -> None:
        self.lines.append((steps, dict(numbers)))

    def close(self, status: str) -> None:
        self.status = status

    @property
    def steps(self) -> list[int]:
        return [steps for steps, _ in self.lines]


def log(run: Run, *updates: int) -> None:
    for update in updates:
        run.log({"update": update, "steps": update * 100, "restarts": 2}, {"red": {"loss": 1 / update}})


def a_run(folder: Path, *updates: int, status: Any = "finished", **made: Writer) -> None:
    """A run that logs lines and ends, with these writers."""
    with Run.create(folder, SETTINGS, seed=3, tensorboard=False) as run:
        run.begin_writers(made, SETTINGS)
        log(run, *updates)
        run.status = status


def resumed(folder: Path, *updates: int, **made: Writer) -> None:
    with Run(folder, tensorboard=False) as run:
        run.begin_writers(made, SETTINGS)
        log(run, *updates)


# ---- settings --------------------------------------------------------------------------------------------------------


def block(writers: Any) -> dict[str, Any]:
    """The writers of a settings file, by name with the settings that are not null or empty."""
    found = read_settings({"env": "CartPole-v1", "total_steps": 10, "writers": writers}).described()["writers"]
    again = read_settings({"env": "CartPole-v1", "total_steps": 10, "writers": found}).described()["writers"]
    assert again == found
    return {name: {key: value for key, value in own.items() if value} for name, own in found.items()}


def test_writers_are_a_name_or_a_list_or_blocks_with_settings() -> None:
    assert block("wandb") == block(["wandb"]) == block({"wandb": None}) == block({"wandb": True}) == {"wandb": {}}
    assert block(None) == block([]) == block({"wandb": False}) == {}
    assert block(["mlflow", {"wandb": {"mode": "offline", "tags": ["a"]}}, "my.code:Csv"]) == {
        "mlflow": {},
        "wandb": {"mode": "offline", "tags": ["a"]},
        "my.code:Csv": {},
    }
    assert block({"my:Csv": {"path": "x"}}) == block({"own": {"my:Csv": {"path": "x"}}}) == {"my:Csv": {"path": "x"}}
    words = ["env=CartPole-v1", "total_steps=10", "writers=[wandb, mlflow]", "writers.wandb.project=spread"]
    assert load_settings(None, words).writers.wandb.project == "spread"  # type: ignore[union-attr]
    assert load_settings(None, words).writers.mlflow is not None


WRONG = {
    "wadb": "`writers.wadb` is unknown. Did you mean `wandb`?",
    "csv": r"`writers.csv` is unknown. Known are .*`wandb`. One of your own is package.module:Class.",
    "{wandb: {projct: x}}": "`writers.wandb.projct` is unknown. Did you mean `project`?",
    "{mlflow: {mode: offline}}": "`writers.mlflow.mode` is unknown.",
    "{wandb: {mode: ofline}}": "`writers.wandb.mode: 'ofline'`.* Did you mean 'offline'?",
    "{tensorboard: {folder: x}}": "`writers.tensorboard.folder` is unknown. It has no settings.",
    "[3]": "`writers: .3.`: give names of writers",
    "{own: 3}": "`own` holds names of classes",
    "{wandb: offline}": "`writers.wandb: 'offline'`",
}


@pytest.mark.parametrize("meta", [False, True])
def test_wrong_settings_of_writers_are_named_before_anything_begins(meta: bool, tmp_path: Path) -> None:
    for given, told in WRONG.items():
        file, folder = BANDITS if meta else tmp_path / "cartpole.yaml", tmp_path / "run"
        (tmp_path / "cartpole.yaml").write_text("env: CartPole-v1\ntotal_steps: 10\n")
        done = command(file, f"writers={given}", f"folder={folder}")
        assert done.exit_code == 2
        assert re.search(told, " ".join(done.output.split())), done.output
        assert not folder.exists()


# ---- lines and runs --------------------------------------------------------------------------------------------------


def test_a_writer_gets_the_run_its_lines_and_its_end(tmp_path: Path) -> None:
    memory = Memory()
    with Run.create(tmp_path / "spread", SETTINGS, seed=3, tensorboard=False) as run:
        run.begin_writers({"memory": memory}, {**SETTINGS, "writers": {"mlflow": {"tracking_uri": "a password"}}})
        log(run, 1, 2)
        run.status = "finished"
    assert memory.run == RunFacts(folder=tmp_path / "spread", name="spread", settings=SETTINGS)
    assert memory.lines == [(100, {"loss/red": 1.0, "restarts": 2.0}), (200, {"loss/red": 0.5, "restarts": 2.0})]
    assert memory.status == "finished"
    states = json.loads((tmp_path / "spread" / "writers.json").read_text())
    assert states == {"memory": {"run_id": "first", "steps": 200}}


def test_a_resumed_run_goes_on_in_the_same_run_without_a_point_twice_or_a_gap(tmp_path: Path) -> None:
    """The run crashed at step 300, after its checkpoint at step 200. A second writer is new."""
    a_run(tmp_path / "run", 1, 2, 3, memory=Memory())
    with Run(tmp_path / "run", tensorboard=False) as run:
        run._metrics.drop_after(200)
    again, new = Memory(), Memory()
    resumed(tmp_path / "run", 3, 4, memory=again, new=new)
    assert again.run is not None
    assert new.run is not None
    assert (again.run.run_id, again.steps) == ("first", [400])
    assert (new.run.run_id, new.steps) == (None, [100, 200, 300, 400])
    assert new.lines[0] == (100, {"loss/red": 1.0, "restarts": 2.0})
    (tmp_path / "run" / "writers.json").write_text("damaged")
    resumed(tmp_path / "run", memory=(begun_anew := Memory()))
    assert begun_anew.steps == [100, 200, 300, 400]


def test_a_writer_that_fails_is_named_once_and_the_others_have_everything(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Odd(Memory):
        def write(self, steps: int, numbers: Mapping[str, float]) -> None:
            if steps < 300:
                raise ConnectionError("no\n network.")
            super().write(steps, numbers)

        def close(self, status: str) -> None:
            raise SystemExit(3)

    class NotBegun(Memory):
        def begin(self, run: RunFacts) -> str | None:
            raise KeyboardInterrupt

    odd, other, never = Odd(), Memory(), NotBegun()
    a_run(tmp_path / "run", 1, 2, 3, odd=odd, never=never, other=other)
    assert (odd.steps, other.steps, never.steps) == ([300], [100, 200, 300], [])
    assert [line["steps"] for line in read_metrics(tmp_path / "run")] == [100, 200, 300]
    assert caplog.text.count("The writer odd failed at step 100: ConnectionError: no network. metrics.jsonl has") == 1
    assert caplog.text.count("The writer odd failed at its end: SystemExit: 3.") == 1
    assert caplog.text.count("The writer never could not begin: KeyboardInterrupt") == 1
    assert len(caplog.records) == 3
    resumed(tmp_path / "run", never=never)  # as it never began, it is not known
    resumed(tmp_path / "run", never=(late := Memory()))
    assert late.steps == [100, 200, 300]


def test_a_writer_that_hangs_delays_neither_lines_nor_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CLOSE_SECONDS", 0.4)
    monkeypatch.setattr(module, "_MOST_WAITING", 3)
    is_over = threading.Event()

    class Hanging(Memory):
        def begin(self, run: RunFacts) -> str | None:
            assert is_over.wait(60)
            return None

    hanging, other = Hanging(), Memory()
    try:
        a_run(tmp_path / "run", *range(1, 10), hanging=hanging, other=other)
        assert other.steps[-1] == 900 or "The writer other is 3 lines behind" in caplog.text
        assert "The writer hanging is 3 lines behind, and misses lines from step 400 on." in caplog.text
        assert "The writer hanging has not ended within 0 seconds and is left behind with 3 lines." in caplog.text
        assert len(read_metrics(tmp_path / "run")) == 9
    finally:
        is_over.set()


def test_what_a_writer_returns_or_changes_is_no_matter_of_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Odd(Memory):
        def begin(self, run: RunFacts) -> str | None:
            run.settings["algorithm"].clear()
            return tmp_path  # type: ignore[return-value]  # JSON cannot hold it

    class Popping(Memory):
        def write(self, steps: int, numbers: Mapping[str, float]) -> None:
            numbers.pop("loss/red")  # type: ignore[attr-defined]

    settings = {"algorithm": {"name": "ppo"}}
    with Run.create(tmp_path / "run", SETTINGS, seed=3, tensorboard=False) as run:
        run.begin_writers({"odd": Odd(), "popping": Popping(), "other": (other := Memory())}, settings)
        log(run, 1, 2)
        run.status = "finished"
    assert settings == {"algorithm": {"name": "ppo"}}
    assert other.run is not None
    assert other.run.settings == settings
    assert other.lines == [(100, {"loss/red": 1.0, "restarts": 2.0}), (200, {"loss/red": 0.5, "restarts": 2.0})]
    assert other.status == "finished"
    assert "The writer odd could not begin: TypeError: `begin` returned " in caplog.text
    assert set(json.loads((tmp_path / "run" / "writers.json").read_text())) == {"popping", "other"}


def test_a_slow_writer_that_is_left_behind_lacks_one_line_after_resuming(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CLOSE_SECONDS", 0.2)
    has_begun, is_over = threading.Event(), threading.Event()

    class Slow(Memory):
        def begin(self, run: RunFacts) -> str | None:
            assert has_begun.wait(60)  # all lines wait when it begins
            return None

        def write(self, steps: int, numbers: Mapping[str, float]) -> None:
            super().write(steps, numbers)
            if steps == 200:
                in_hand.set()
                assert is_over.wait(60)

    slow, in_hand = Slow(), threading.Event()
    with Run.create(tmp_path / "run", SETTINGS, seed=3, tensorboard=False) as run:
        run.begin_writers({"slow": slow}, SETTINGS)
        log(run, *range(1, 10))
        has_begun.set()
        assert in_hand.wait(60)
    try:
        assert "is left behind with 8 lines." in caplog.text
        assert json.loads((tmp_path / "run" / "writers.json").read_text())["slow"]["steps"] == 200
        monkeypatch.undo()
        resumed(tmp_path / "run", slow=(again := Memory()))
        assert again.steps == [300, 400, 500, 600, 700, 800, 900]
    finally:
        is_over.set()


CSV = """
from parallel_envs.learners import Writer


class Csv(Writer):
    def __init__(self, path="curve.csv"):
        self.file = open(path, "a")

    def begin(self, run):
        self.file.write(f"begin {run.name} {run.run_id} {run.settings['num_envs']}\\n")
        return "known"

    def write(self, steps, numbers):
        self.file.write(f"{steps} {numbers['loss/agent_0']}\\n")

    def close(self, status):
        self.file.write(f"{status}\\n")
        self.file.close()
"""


def test_a_writer_of_ones_own_is_a_class_in_a_file_which_a_run_of_another_needs_trust_for(
    train: Train, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(CSV)
    folder, path = tmp_path / "run", tmp_path / "curve.csv"
    given = json.dumps({f"{tmp_path}/mine.py:Csv": {"path": str(path)}})
    done = train(f"writers={given}", "log_every=20", f"folder={folder}")
    assert done.exit_code == 0, done.output
    head, *lines, status = path.read_text().splitlines()
    assert (head, status) == ("begin run None 2", "finished")
    assert lines == [f"{one['steps']} {one['agents']['agent_0']['loss']}" for one in read_metrics(folder)]
    assert f"--trust {tmp_path}/mine.py" in commands_in(done.output)[-1]
    refused = command("--resume", folder, "total_steps=120")
    assert (refused.exit_code, f"--trust {tmp_path}/mine.py" in refused.output) == (2, True)
    done = command("--resume", folder, "--trust", tmp_path / "mine.py")  # nothing is left to do or to write
    assert done.exit_code == 0, done.output
    assert path.read_text().splitlines()[-2:] == ["begin run known 2", "finished"]
    missing = train(f"writers={tmp_path}/mine.py:Cvs", f"folder={tmp_path / 'other'}")
    assert (missing.exit_code, "Did you mean 'Csv'?" in missing.output) == (2, True)
    for name, told in (("json:dumbs", "has no attribute 'dumbs'"), ("json:JSONEncoder", "no method begin"),
                       ("not_there:Csv", "cannot be made: ModuleNotFoundError")):  # fmt: skip
        with pytest.raises(BadSettings, match=told):
            make_writers(WritersBlock.model_validate(name))


def test_ctrl_c_is_told_to_writers_and_python_gives_objects(config: Path, tmp_path: Path) -> None:
    class Impatient(Memory):
        def write(self, steps: int, numbers: Mapping[str, float]) -> None:
            super().write(steps, numbers)
            if len(self.lines) == 2:
                os.kill(os.getpid(), signal.SIGINT)

    one, other = Impatient(), Memory()
    words = ["backend=serial", "update_mode=sequential", "total_steps=100000", "log_every=10"]
    with pytest.raises(KeyboardInterrupt):
        begin(config, [*words, f"folder={tmp_path / 'run'}"], writers=[one, other, Memory()])
    assert (one.status, other.status) == ("interrupted", "interrupted")
    assert one.steps == other.steps == [line["steps"] for line in read_metrics(tmp_path / "run")]
    assert set(json.loads((tmp_path / "run" / "writers.json").read_text())) == {"Impatient", "Memory", "Memory-2"}


def test_a_meta_learner_writes_returns_and_evaluations(tmp_path: Path) -> None:
    from parallel_envs.learners import Learner
    from parallel_envs.learners.meta.agent import AGENT

    words = {key: yaml.safe_load(value) for key, _, value in (word.partition("=") for word in SMALL)}
    with Learner(BANDITS, **words, **{"train.num_iters": 1}) as learner:
        learner.train(tmp_path / "run", writers=[memory := Memory()])
    ((steps, numbers),) = memory.lines
    (line,) = read_metrics(tmp_path / "run")
    assert steps == line["steps"]
    assert numbers["evaluation/total"] == line["evaluation"]["total"]
    assert numbers[f"return/{AGENT}"] == line["agents"][AGENT]["return"]
    assert memory.status == "finished"
    assert memory.run is not None
    assert memory.run.settings["train"]["num_iters"] == 1


# ---- the packages ----------------------------------------------------------------------------------------------------

Calls = list[tuple[str, Any]]


def fakes(calls: Calls) -> dict[str, types.ModuleType]:
    """Modules of the packages' interface, which note what they are called with."""

    def noted(name: str, result: Any = None) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append((name, {**({"args": args} if args else {}), **kwargs}))
            return result

        return call

    def made(name: str, **content: Any) -> types.ModuleType:
        found = types.ModuleType(name)
        found.__spec__ = ModuleSpec(name, None)
        vars(found).update(content)
        return found

    space = types.SimpleNamespace
    setup = space(settings=space(mode="online"))
    run = space(id="w1", log=noted("log"), finish=noted("finish"))
    wandb = made("wandb", setup=lambda: setup, login=noted("login", True), init=noted("init", run), Settings=dict)
    names = ("create_experiment", "update_run", "log_batch", "set_terminated")
    client = space(**{name: noted(name, "e1") for name in names})
    client.create_run = noted("create_run", space(info=space(run_id="m1")))
    tracking = made("mlflow.tracking", MlflowClient=noted("client", client))
    entities = made("mlflow.entities", Param=lambda *args: args, Metric=lambda *args: (*args[:2], args[3]))
    exceptions = made("mlflow.exceptions", MlflowException=ValueError)
    own = space(log=noted("log"), finish=noted("finish"))
    trackio = made("trackio", init=noted("init", own))
    modules = [wandb, made("mlflow"), tracking, entities, exceptions, trackio]
    modules += [made("trackio.run"), made("trackio.utils")]
    return {one.__name__: one for one in modules}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    noted: Calls = []
    for name, one in fakes(noted).items():
        monkeypatch.setitem(sys.modules, name, one)
    for name in ("WANDB_PROJECT", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    return noted


def of(calls: Calls, name: str) -> list[Any]:
    return [given for one, given in calls if one == name]


def test_wandb_gets_settings_as_config_the_folders_name_and_the_same_run_again(calls: Calls, tmp_path: Path) -> None:
    wanted = WritersBlock.model_validate({"wandb": {"mode": "offline", "group": "seeds", "tags": ["a"]}})
    a_run(tmp_path / "spread", 1, 2, **make_writers(wanted))
    (init,) = of(calls, "init")
    assert {name: init[name] for name in ("project", "name", "group", "tags", "mode", "dir", "config", "id")} == {
        "project": "parallel-envs",
        "name": "spread",
        "group": "seeds",
        "tags": ["a"],
        "mode": "offline",
        "dir": str(tmp_path / "spread"),
        "config": SETTINGS,
        "id": None,
    }
    assert not of(calls, "login")  # offline needs none
    lines = [{"args": ({"loss/red": loss, "restarts": 2.0},), "step": step} for step, loss in ((100, 1.0), (200, 0.5))]
    assert of(calls, "log") == lines
    assert of(calls, "finish") == [{"exit_code": 0}]
    resumed(tmp_path / "spread", 2, 3, **make_writers(wanted))
    assert (of(calls, "init")[1]["id"], of(calls, "init")[1]["resume"]) == ("w1", "allow")
    assert [one["step"] for one in of(calls, "log")] == [100, 200, 300]


def test_mlflow_gets_parameters_by_their_names_in_batches_and_how_the_run_ended(calls: Calls, tmp_path: Path) -> None:
    wanted = WritersBlock.model_validate({"mlflow": {"tracking_uri": "sqlite:///x.db", "experiment": "e"}})
    many = {"wide": {f"a b[{number}]": number for number in range(150)}, "nothing": None}
    with Run.create(tmp_path / "run", SETTINGS, seed=3, tensorboard=False) as run:
        run.begin_writers(make_writers(wanted), many)
        log(run, 1)
        run.status = "interrupted"
    assert of(calls, "client") == [{"tracking_uri": "sqlite:///x.db"}]
    assert of(calls, "create_experiment") == [{"args": ("e",)}]
    assert of(calls, "create_run") == [{"args": ("e1",), "run_name": "run", "tags": {}}]
    params = [one["params"] for one in of(calls, "log_batch") if "params" in one]
    assert [len(one) for one in params] == [100, 51]
    assert (params[0][3], params[1][-1]) == (("wide.a b_3_", "3"), ("nothing", "None"))
    metrics = [one["metrics"] for one in of(calls, "log_batch") if "metrics" in one]
    assert metrics == [[("loss/red", 1.0, 100), ("restarts", 2.0, 100)]]
    assert of(calls, "set_terminated") == [{"args": ("m1", "KILLED")}]
    resumed(tmp_path / "run", 2, **make_writers(wanted))
    assert of(calls, "update_run") == [{"args": ("m1",), "status": "RUNNING"}]
    assert len(of(calls, "create_run")) == 1
    assert of(calls, "set_terminated")[1] == {"args": ("m1", "FAILED")}  # as nobody said how it ended


def test_trackio_goes_on_in_the_run_of_its_name_and_leaves_stdout_alone(
    calls: Calls, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = WritersBlock.model_validate({"trackio": {"project": "p", "name": "n"}})
    a_run(tmp_path / "run", 1, **make_writers(wanted))
    resumed(tmp_path / "run", 2, **make_writers(wanted))
    inits = [{name: one[name] for name in ("project", "name", "resume", "config")} for one in of(calls, "init")]
    first = {"project": "p", "name": "n", "resume": "never", "config": SETTINGS}
    assert inits == [first, {**first, "resume": "must"}]
    assert [one["step"] for one in of(calls, "log")] == [100, 200]
    sys.modules["trackio"].print("* Created new run")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio", "tensorboard"])
def test_a_missing_package_is_named_before_the_run_begins(
    name: str, train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    done = train(f"writers={name}", f"folder={tmp_path / 'run'}")
    extra = "learn" if name == "tensorboard" else name
    assert done.exit_code == 2
    assert (
        f'The writer {name} needs {name}, which is not installed: pip install "parallel-envs[{extra}]"' in done.output
    )
    assert not (tmp_path / "run").exists()
    with pytest.raises(MissingExtra):
        make_writers(WritersBlock.model_validate(name))


def test_wandb_without_a_key_is_refused_as_a_thread_could_not_ask_for_it(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["wandb"], "login", lambda **_: False)
    with pytest.raises(BadSettings, match=r"finds no API key\. Run `wandb login` .*writers\.wandb\.mode=offline"):
        make_writers(WritersBlock.model_validate("wandb"))
    make_writers(WritersBlock.model_validate({"wandb": {"mode": "disabled"}}))


# ---- the real packages, offline --------------------------------------------------------------------------------------


def is_real(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def trained(folder: Path, writers: Any, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """A small run in a process of its own, as W&B starts helpers; then a second part of it."""
    settings: dict[str, Any] = {"env": "CartPole-v1", "num_envs": 2, "total_steps": 120, "log_every": 20}
    settings |= {"backend": "serial", "update_mode": "sequential", "tensorboard": False, "folder": str(folder)}
    settings["algorithm"] = {"name": "ppo", "rollout_length": 8, "minibatch_size": 8, "hidden": [8]}
    (folder.parent / "run.yaml").write_text(yaml.safe_dump({**settings, "writers": writers}))
    base = [sys.executable, "-m", "parallel_envs", "train"]
    surroundings = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    for given in (["run.yaml", *words], ["--resume", str(folder), "total_steps=240"]):
        done = subprocess.run(
            [*base, *given],
            cwd=folder.parent,
            env=surroundings,
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [str(folder)]
        assert "The writer" not in done.stderr
    return done


def steps_in(folder: Path) -> list[int]:
    found = [line["steps"] for line in read_metrics(folder)]
    assert len(found) > 8
    return found


@pytest.mark.slow
@pytest.mark.skipif(not is_real("wandb"), reason="needs wandb")
@pytest.mark.parametrize("mode", ["offline", "disabled"])
def test_real_wandb(mode: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    trained(folder, ["wandb"], WANDB_MODE=mode)
    files = sorted(folder.glob("wandb/offline-run-*/run-*.wandb"))
    assert len(files) == (2 if mode == "offline" else 0)
    if files:
        assert len({path.name for path in files}) == 1  # both have one id
        assert [step for path in files for step in steps_of_wandb(path)] == steps_in(folder)


def steps_of_wandb(path: Path) -> list[int]:
    """The steps in a file of an offline run: records of protobuf in the log format of LevelDB."""
    from wandb.proto import wandb_internal_pb2

    data, place, whole, steps = path.read_bytes(), 7, b"", []
    while place + 7 <= len(data):
        size, kind = struct.unpack("<HB", data[place + 4 : place + 7])
        whole += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # a whole record, or the last part of one
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            whole = b""
            if record.WhichOneof("record_type") == "history":
                steps.append(record.history.step.num)
        if (left := 32768 - place % 32768) < 7:  # a block ends
            place += left
    return steps


@pytest.mark.slow
@pytest.mark.skipif(not is_real("mlflow"), reason="needs mlflow-skinny and sqlalchemy")
def test_real_mlflow(tmp_path: Path) -> None:
    folder, path = tmp_path / "run", tmp_path / "mlflow.db"
    trained(folder, {"mlflow": {"tracking_uri": f"sqlite:///{path}"}})
    with sqlite3.connect(path) as store:
        assert store.execute("select name, status from runs").fetchall() == [("run", "FINISHED")]
        params = dict(store.execute("select key, value from params").fetchall())
        rows = store.execute("select step from metrics where key = 'loss/agent_0'").fetchall()
    store.close()
    assert (params["algorithm.rollout_length"], params["num_workers"]) == ("8", "None")
    assert sorted(step for (step,) in rows) == steps_in(folder)


@pytest.mark.slow
@pytest.mark.skipif(not is_real("trackio"), reason="needs trackio")
def test_real_trackio(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    trained(folder, {"trackio": {"project": "p"}}, TRACKIO_DIR=str(tmp_path / "trackio"))
    with sqlite3.connect(tmp_path / "trackio" / "p.db") as store:
        rows = store.execute("select step from metrics where run_name = 'run'").fetchall()
    store.close()
    assert sorted(step for (step,) in rows) == steps_in(folder)


def test_a_tensorboard_that_does_not_close_is_not_waited_for_long(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "_BOARD_SECONDS", 0.1)
    board, goes_on = module.TensorBoardWriter(tmp_path), threading.Event()
    board._writer = types.SimpleNamespace(close=goes_on.wait)
    board.close()
    goes_on.set()
    board.close()
