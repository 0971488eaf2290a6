"""A search of settings: spaces are checked before the first trial, trials are runs, and a search can go on."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from parallel_envs import cli
from parallel_envs.files import locked
from parallel_envs.learners import sweep as module
from parallel_envs.learners.config import BadSettings
from parallel_envs.learners.run_folder import BadRun, newest_checkpoint, read_metrics
from parallel_envs.learners.sweep import (
    RunningTrial,
    Space,
    Sweep,
    SweepSettings,
    begin_sweep,
    check_space,
    metric_of,
    read_words,
    sweep_in,
)
from tests.learners.test_outcomes import BANDITS, SMALL, SOURCE

ROOT = Path(__file__).parents[2]
BASE: dict[str, Any] = {
    "env": "CartPole-v1",
    "num_envs": 2,
    "total_steps": 80,
    "checkpoint_every": 40,
    "backend": "serial",
    "update_mode": "sequential",
    "tensorboard": False,
    "algorithm": {"name": "ppo", "rollout_length": 8, "minibatch_size": 8, "num_epochs": 2, "hidden": [8]},
}
RATE = "algorithm.learning_rate=log:1e-4..1e-2"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(BASE))
    return path


def wanted(*words: str, **more: Any) -> SweepSettings:
    return SweepSettings(**{"words": words, "metric": "return", "trials": 2, **more})


def command(*words: object) -> Result:
    return CliRunner().invoke(cli.app, ["sweep", *map(str, words)])


# ---- spaces ----------------------------------------------------------------------------------------------------------


def test_words_are_ranges_choices_and_fixed_values() -> None:
    words = [RATE, "a=2..8", "b=0.5..1", "c=x,y", "d=[16],[32, 32]", "e=[1, 2]", "f=1e5", "g=a..b.c", "h=true,null"]
    with pytest.raises(BadSettings, match=r"'g=a\.\.b\.c' is no range of numbers"):
        read_words(words)
    spaces, fixed = read_words([word for word in words if not word.startswith("g")])
    assert spaces == [
        Space("algorithm.learning_rate", 1e-4, 1e-2, log=True),
        Space("a", 2, 8, whole=True),
        Space("b", 0.5, 1.0),
        Space("c", choices=("x", "y")),
        Space("d", choices=([16], [32, 32])),
        Space("h", choices=(True, None)),
    ]
    assert fixed == {"e": [1, 2], "f": "1e5"}
    assert read_words([RATE, "env=../x.py:E"])[1] == {"env": "../x.py:E"}  # a path is no range
    assert Space("d", choices=([16], [32, 32])).value("[32, 32]") == [32, 32]


def test_whole_numbers_stay_whole_where_the_setting_needs_it() -> None:
    def found(word: str, base: dict[str, Any] = BASE) -> Space:
        ((space,), _) = read_words([word])
        return check_space(space, base)

    assert found("algorithm.num_epochs=2..8").whole
    assert found("algorithm.num_epochs=log:1e0..1e1").whole
    assert not found("algorithm.clip_range=1..2").whole
    assert found("env_kwargs.size=1..2").whole
    assert not found("env_kwargs.size=1.0..2").whole
    assert found("train.num_rollouts_per_iter=20..40", yaml.safe_load(BANDITS.read_text())).whole


MISTAKES = {
    "algorithm.learnin_rate=1e-4..1": "`algorithm.learnin_rate` is unknown. Did you mean `learning_rate`?",
    "algorithm.num_epochs=2.5..8": "valid integer",
    "algorithm.activation=1..8": "Input should be 'tanh' or 'relu'",
    "algorithm.activation=tanh,rel": "Did you mean 'relu'?",
    "algorithm.name=ppo,pop": "`algorithm.name: pop` is unknown. Did you mean `ppo`?",
    "num_env=1..8": "`num_env` is unknown. Did you mean `num_envs`?",
    "algorithm.num_epochs=8..2": "is an empty range. Give the lower end first.",
    "algorithm.gae_lambda=log:0..1": "a range on a logarithmic scale begins above 0.",
    "seed=1": "There is nothing to search.",
    "folder=a,b": "`folder` is what the sweep itself gives each run.",
    "seeds": "does not have the form key=low..high",
}


def test_mistakes_are_told_before_the_first_trial(config: Path, tmp_path: Path) -> None:
    for word, told in MISTAKES.items():
        with pytest.raises(BadSettings, match=re.escape(told)):
            begin_sweep(config, wanted(word), tmp_path / "sweep")
        assert not (tmp_path / "sweep").exists()
    with pytest.raises(BadSettings, match="is given twice"):
        begin_sweep(config, wanted(RATE, RATE), tmp_path / "sweep")
    whole = "algorithm={name: ppo},{name: sac}"
    for words in ((whole, "algorithm.num_epochs=2..8"), ("algorithm.num_epochs=2..8", whole), (whole, "algorithm.a=1")):
        with pytest.raises(BadSettings, match=r"`algorithm\.\w+` is a part of `algorithm`"):
            begin_sweep(config, wanted(*words), tmp_path / "sweep")
    assert len(read_words(["algorithm={name: ppo}", "algorithm.num_epochs=2..8"])[0]) == 1  # the block is the base


def test_the_same_command_goes_on_and_another_is_refused(config: Path, tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    assert begin_sweep(config, wanted(RATE, "total_steps=96"), folder) == (folder, False)
    assert yaml.safe_load((folder / "base.yaml").read_text()) == {**BASE, "total_steps": 96}
    assert begin_sweep(config, wanted(RATE, "total_steps=96", trials=9), folder) == (folder, True)
    for other in (wanted(RATE), wanted(RATE, "total_steps=96", metric="loss")):
        with pytest.raises(FileExistsError, match="holds another sweep"):
            begin_sweep(config, other, folder)
    with pytest.raises(FileExistsError, match="holds something already"):
        begin_sweep(config, wanted(RATE), tmp_path)


def test_a_metric_is_of_an_agent_or_a_mean_and_a_misspelt_one_is_named() -> None:
    lines = [
        {"steps": 10, "agents": {"red": {"loss": 1.0}, "blue": {"loss": 3.0}}},
        {"steps": 20, "agents": {"red": {"loss": 2.0, "return": 5.0}}},
    ]
    assert [value for _, value in metric_of(lines, "loss")] == [2.0, 2.0]
    assert [value for _, value in metric_of(lines, "loss/blue")] == [3.0]
    assert [line["steps"] for line, _ in metric_of(lines, "return")] == [20]
    assert metric_of(lines[:1], "return") == []  # no episode has ended yet
    with pytest.raises(BadRun, match=r"no metric 'los'; there are .*loss.* Did you mean 'loss'\?"):
        metric_of(lines, "los")


# ---- trials ----------------------------------------------------------------------------------------------------------


def test_options_are_checked(config: Path, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    told = {
        ("--trials", 2): "Give one settings file",
        (config, RATE): "--trials N",
        (config, RATE, "--trials", 0): "--trials 0 is too small",
        (config, RATE, "--trials", 2, "--sampler", "tp"): "Did you mean 'tpe'?",
        ("--resume", tmp_path): "holds no sweep",
        (tmp_path / "smal.yaml", RATE, "--trials", 2): "Did you mean",
    }
    for words, text in told.items():
        done = command(*words)
        assert (done.exit_code, text in " ".join(done.output.split())) == (2, True), done.output


def a_search(folder: Path, config: Path, *values: float | None) -> Any:
    """A sweep of trials that ended with these values, the rate of each 1e-3; None: it failed."""
    optuna = pytest.importorskip("optuna")
    begin_sweep(config, wanted(RATE, "algorithm.num_epochs=2..8", "algorithm.hidden=[8],[16]", trials=3), folder)
    search = Sweep(folder, 1, print)
    for value in values:
        trial = search.study.ask({one.key: one.distribution() for one in search.spaces})
        for part in range(1, 21) if value is not None else ():
            trial.report(value, part)
        state = optuna.trial.TrialState.FAIL if value is None else optuna.trial.TrialState.COMPLETE
        trial.set_user_attr("reason", "a reason" if value is None else "")
        search.study.tell(trial, value, state=state)
    return search


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """The folder of a search that is done, with a page beside it, and what its command has printed."""
    pytest.importorskip("matplotlib")
    place = tmp_path_factory.mktemp("searched")
    (place / "small.yaml").write_text(yaml.safe_dump(BASE))
    a_search(place / "sweep", place / "small.yaml", 3.0, None, 9.0)
    done = command("--resume", place / "sweep", "--json", "--output", place / "page.html")  # nothing is left to do
    assert done.exit_code == 0, done.output
    return place / "sweep", done


def test_results_are_a_table_json_and_a_page_and_the_best_settings_can_be_trained(
    searched: tuple[Path, Result],
) -> None:
    folder, done = searched
    document = json.loads(done.stdout)
    assert [(one["state"], one["value"]) for one in document["trials"]] == [
        ("complete", 3.0),
        ("failed", None),
        ("complete", 9.0),
    ]
    assert (document["best"]["number"], document["best"]["folders"]) == (2, ["trial-002"])
    best = yaml.safe_load((folder / "best.yaml").read_text())
    assert best["algorithm"] == {**BASE["algorithm"], **{
        key.removeprefix("algorithm."): value for key, value in document["best"]["settings"].items()
    }}  # fmt: skip
    assert isinstance(best["algorithm"]["num_epochs"], int)
    assert f"train {folder / 'best.yaml'}" in done.stderr
    page = (folder.parent / "page.html").read_text()
    for words in ("Sweep: sweep", "return by algorithm.learning_rate", "[16]", "a reason", "best 9"):
        assert words in page
    told = CliRunner().invoke(cli.app, ["report", str(folder)], env={"COLUMNS": "150"})
    assert told.exit_code == 0, told.output
    assert "trial 1 failed: a reason" in told.output
    assert told.output.index(" 9 ") < told.output.index(" 3 ")


def test_the_folder_of_another_needs_trust_for_its_environment(config: Path, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    folder = tmp_path / "sweep"
    begin_sweep(config, wanted(RATE), folder)
    (folder / "base.yaml").write_text(yaml.safe_dump({**BASE, "env": f"{tmp_path}/theirs.py:Env"}))
    done = command("--resume", folder)
    assert (done.exit_code, f"--trust {tmp_path}/theirs.py" in done.output) == (2, True)


def test_a_trial_that_is_behind_half_of_the_others_is_pruned(config: Path, tmp_path: Path) -> None:
    search = a_search(tmp_path / "sweep", config, *[100.0] * 5)
    lines = [{"steps": steps, "agents": {"agent_0": {"return": 20.0}}} for steps in range(4, 44, 4)]
    process = subprocess.Popen(["sleep", "100"])
    begun: list[Any] = []
    search._start_run = begun.append
    search._begin(search.study.ask({one.key: one.distribution() for one in search.spaces}))
    (one,) = search.running
    assert begun == [one]
    one.process = process
    search._compare(one, metric_of(lines[:3], "return"))  # at the beginning no trial is
    assert search.running == [one]
    search._compare(one, metric_of(lines, "return"))
    assert search.running == []
    assert process.returncode is not None
    trial = sweep_in(tmp_path / "sweep").trials[-1]
    assert (trial.state, trial.value) == ("pruned", 20.0)
    assert trial.reason.startswith("behind others after 20 %")


def a_trial(search: Any) -> RunningTrial:
    trial = SimpleNamespace(number=3)
    return RunningTrial(trial, {"algorithm.learning_rate": 1e-3}, 0, [search.folder / "trial-003"])


def test_a_search_that_is_refused_changes_nothing(config: Path, tmp_path: Path) -> None:
    folder = a_search(tmp_path / "sweep", config).folder
    before = (folder / "sweep.yaml").read_text()
    with locked(folder):
        done = command("--resume", folder, "--trials", 7)
    assert (done.exit_code, "Another process is searching" in done.output) == (2, True), done.output
    assert (folder / "sweep.yaml").read_text() == before


def test_a_trial_begins_when_the_run_that_a_killed_search_left_has_ended(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = a_search(tmp_path / "sweep", config)
    one, begun = a_trial(search), threading.Event()
    one.folder.mkdir()
    (one.folder / "metrics.jsonl").write_text("of the run that is left")
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: begun.set())
    with locked(one.folder):
        monkeypatch.setattr(module, "_ORPHAN_SECONDS", 0.0)
        with pytest.raises(BadRun, match="Another process is using"):
            search._start_run(one)
        assert list(one.folder.iterdir())
        monkeypatch.undo()
        monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: begun.set())
        later = threading.Thread(target=search._start_run, args=(one,))
        later.start()
        assert not begun.wait(0.3)
        assert list(one.folder.iterdir())
    later.join(60)
    assert begun.is_set()
    assert not one.folder.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="the system does not tell a process that its parent has ended")
def test_a_run_whose_search_was_killed_at_once_ends() -> None:
    command = [sys.executable, "-c", module._CHILD, "1", "0", "--version"]  # its parent is not process 1
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "The sweep was killed before the run began." in done.stderr


LOG = """
Networks learn and act on cpu.
Ended by an error (ValueError) after 10 of 200 steps, in 14 s.
agent    algorithm  episodes  last mean return   best
agent_0  ppo              96             92.42  92.42
Next:
  parallel-envs report runs/trial-003
  parallel-envs train --resume runs/trial-003
"""


def test_the_reason_of_a_failure_is_no_advice(config: Path, tmp_path: Path) -> None:
    search = a_search(tmp_path / "sweep", config)
    one = a_trial(search)
    for log, told in ((f"The disk is full.\n{LOG}", "Ended by an error (ValueError) after 10"),
                      (f"{LOG}The disk is full.\n", "The disk is full. (exit code 1, trial-003.log)")):  # fmt: skip
        (search.folder / "trial-003.log").write_text(log)
        assert search._reason(one, 1).startswith(told)


def test_a_system_that_tells_no_cores_has_a_search(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "cores_here", tuple)
    monkeypatch.setattr(module, "num_cores", lambda: 3)
    begin_sweep(config, wanted(RATE), tmp_path / "sweep")
    pytest.importorskip("optuna")
    assert [tuple(share) for share in Sweep(tmp_path / "sweep", 2, print).shares] == [(0, 2), (1,)]


@pytest.mark.slow
def test_trials_are_runs_with_seeds_and_one_that_fails_is_named(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    (tmp_path / "walks.py").write_text(
        SOURCE.replace("self.length, self.title = length, title", "self.length = 9 // length")
    )
    config = tmp_path / "walk.yaml"
    config.write_text(yaml.safe_dump({**BASE, "env": "./walks.py:Walk"}))
    given = [config, "env_kwargs.length=0,3", "--trials", 4, "--seeds", 2, "--jobs", 2, "--sampler", "random"]
    folder = tmp_path / "sweep"
    done = command(*given, "--folder", folder, "--json")
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    states = {one["settings"]["env_kwargs.length"]: one["state"] for one in document["trials"]}
    assert states == {0: "failed", 3: "complete"}
    for one in document["trials"]:
        if one["state"] == "failed":
            assert "ZeroDivisionError" in one["reason"]
            continue
        values = [metric_of(read_metrics(folder / name), "return")[-1][1] for name in one["folders"]]
        assert len(values) == 2
        assert one["value"] == pytest.approx(sum(values) / 2)
        settings = [yaml.safe_load((folder / name / "settings.yaml").read_text()) for name in one["folders"]]
        assert [own["seed"] for own in settings] == [0, 1]
        assert settings[0]["env_kwargs"] == {"length": 3}


@pytest.mark.slow
def test_after_ctrl_c_trials_go_on_from_their_checkpoints(config: Path, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    folder, words = tmp_path / "sweep", [sys.executable, "-m", "parallel_envs", "sweep"]
    given = [*words, str(config), RATE, "total_steps=4000", "--trials", "1", "--folder", str(folder)]
    with subprocess.Popen(
        given, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE, text=True
    ) as search:
        while newest_checkpoint(folder / "trial-000") is None and search.poll() is None:
            time.sleep(0.05)
        search.send_signal(signal.SIGINT)
        _, told = search.communicate(timeout=100)
    assert search.returncode == 130, told
    assert "Traceback" not in told
    assert f"sweep --resume {folder}" in told.splitlines()[-1]
    before = newest_checkpoint(folder / "trial-000")
    assert before is not None
    done = command("--resume", folder)
    assert done.exit_code == 0, done.output
    log = (folder / "trial-000.log").read_text()
    assert re.search(r"Ended: all 4,\d+ steps were made .* of them since it was resumed", log)
    assert [one.state for one in sweep_in(folder).trials] == ["complete"]


@pytest.mark.slow
def test_meta_rl_runs_are_searched_by_their_evaluation(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    words = [*SMALL, "train.num_iters=1", "policy.algorithm.learning_rate=1e-4..1e-3"]
    done = command(BANDITS, *words, "--trials", 1, "--folder", tmp_path / "sweep", "--json")
    assert done.exit_code == 0, done.output
    (line,) = read_metrics(tmp_path / "sweep" / "trial-000")
    document = json.loads(done.stdout)
    assert (document["metric"], document["best"]["value"]) == ("evaluation/total", line["evaluation"]["total"])
