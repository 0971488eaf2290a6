"""Runs that are evaluated while they are still training: all episodes play with one checkpoint."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("safetensors")

from parallel_envs.evaluation import BadEvaluation, EpisodeRecord, EvaluationResult, Mission, evaluate, policies
from parallel_envs.evaluation.recordings import record_videos
from parallel_envs.learners.train import begin
from tests.evaluation.stages import FlakyCart

SETTINGS = """
env: CartPole-v1
num_envs: 2
backend: serial
total_steps: 600
checkpoint_every: 150
keep_checkpoints: 9
update_mode: sequential
tensorboard: false
algorithm: {name: ppo, rollout_length: 32, minibatch_size: 32, num_epochs: 8, learning_rate: 0.01}
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with several checkpoints."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "settings.yaml").write_text(SETTINGS)
    return begin(folder / "settings.yaml", [f"folder={folder / 'run'}"])


class Training:
    """A training run with its first checkpoint. As a progress it goes on as soon as an evaluation has begun."""

    def __init__(self, trained: Path, folder: Path) -> None:
        self.folder, checkpoints = folder, sorted((trained / "checkpoints").iterdir())
        (folder / "checkpoints").mkdir(parents=True)
        for name in ("run.json", "settings.yaml"):
            shutil.copy(trained / name, folder)
        self.first, self.last = self.write(checkpoints[0]), checkpoints[-1]
        for odd in ("99999999", ".100000000.old", "best"):  # which are no checkpoints
            (folder / "checkpoints" / odd).mkdir()

    def write(self, checkpoint: Path) -> Path:
        draft, place = self.folder / "checkpoints" / ".new", self.folder / "checkpoints" / checkpoint.name
        shutil.copytree(checkpoint, draft)
        return draft.rename(place)

    def begin(self, *_: object) -> None:
        """Write the last checkpoint and remove the first."""
        self.write(self.last)
        shutil.rmtree(self.first)

    def note(self, record: EpisodeRecord) -> None: ...


@pytest.fixture
def training(trained: Path, tmp_path: Path) -> Training:
    return Training(trained, tmp_path / "run")


def played(run: Path, episodes: int = 4, **settings: Any) -> EvaluationResult:
    (run / "once").touch()
    return evaluate(cart(run), {"it": str(run)}, episodes, seed=3, **settings)


def cart(run: Path) -> Mission:
    return Mission(name="cart", env=FlakyCart, kwargs={"once": str(run / "once")})


def policy_of(result: EvaluationResult) -> dict[str, Any]:
    return dict(result.settings["policies"]["it"])


@pytest.mark.parametrize("jobs", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_training_that_goes_on_changes_nothing(training: Training, jobs: int) -> None:
    before = played(training.folder)
    meanwhile = played(training.folder, jobs=jobs, progress=training)
    assert meanwhile == before
    after = played(training.folder)
    assert [one.score for one in after.episodes] != [one.score for one in before.episodes]
    assert policy_of(after)["checkpoint"] != policy_of(before)["checkpoint"] == str(training.first)
    assert policy_of(after)["digest"] != policy_of(before)["digest"]


def test_a_second_try_in_a_worker_plays_with_the_same_checkpoint(trained: Path, training: Training) -> None:
    policy = {"it": f"class=tests.evaluation.stages:Reading,data={training.folder}"}
    found = evaluate(cart(training.folder), policy, 4, seed=3, jobs=1, progress=training)
    assert [one.attempts for one in found.episodes] == [1, 1, 2, 1]
    after = evaluate(cart(training.folder), policy, 4, seed=3)
    assert policy_of(after)["checkpoint"] != policy_of(found)["checkpoint"] == str(training.first)
    shutil.rmtree(training.folder)
    before = evaluate(cart(Training(trained, training.folder).folder), policy, 4, seed=3)
    scores = [[one.score for one in result.episodes] for result in (found, before, after)]
    assert scores[0] == scores[1] != scores[2]


def test_a_checkpoint_that_is_removed_while_it_is_copied_gives_way_to_the_newer_one(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, tries = policies._copy_folder, list[Path]()

    def late(folder: Path, to: Path, skipped: Sequence[str]) -> None:
        tries.append(folder)
        if len(tries) == 1:
            training.begin()
        copy(folder, to, skipped)

    monkeypatch.setattr(policies, "_copy_folder", late)
    found = played(training.folder)
    assert [path.name for path in tries] == [training.first.name, Path(policy_of(found)["checkpoint"]).name]
    assert found == played(training.folder)


def test_no_copy_stays_behind_and_errors_name_the_folder_that_was_given(
    training: Training, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (temporary := tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    assert str(temporary) not in played(training.folder).to_json()
    with pytest.raises(BadEvaluation) as raised:
        evaluate("MountainCar-v0", {"it": str(training.folder)}, 1)
    assert str(training.first) in str(raised.value)
    assert "parallel-envs-" not in str(raised.value)
    shutil.rmtree(training.first)
    with pytest.raises(BadEvaluation, match=r"The run .*run of the policy 'it' has no checkpoint yet"):
        played(training.folder)
    assert list(temporary.iterdir()) == []


def test_a_folder_of_somebody_elses_is_left_alone(tmp_path: Path) -> None:
    for name in ("run.json", "agent.json"):
        (tmp_path / name).write_text("1")
    found = evaluate("CartPole-v1", {"it": f"class=tests.evaluation.stages:Reading,data={tmp_path}"}, 1)
    assert found.failures == ()
    assert "checkpoint" not in policy_of(found)


@pytest.mark.parametrize("jobs", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_the_rest_is_played_with_the_same_checkpoint_and_not_without(training: Training, jobs: int) -> None:
    whole, begun = played(training.folder), played(training.folder, 2)
    training.write(training.last)
    assert played(training.folder, resume=begun, jobs=jobs) == whole
    shutil.rmtree(training.first)
    with pytest.raises(BadEvaluation, match=rf"of the checkpoint {training.first}, which is gone"):
        played(training.folder, resume=begun)
    shutil.copytree(training.last, training.first)
    with pytest.raises(BadEvaluation, match=rf"{training.first}, and the checkpoint or the code of the policy has ch"):
        played(training.folder, resume=begun)


def test_what_is_filmed_is_what_was_evaluated(training: Training, tmp_path: Path) -> None:
    pytest.importorskip("moviepy")
    found = played(training.folder)
    training.begin()
    videos = record_videos(found, cart(training.folder), {"it": str(training.folder)}, "best", tmp_path / "v")
    with pytest.raises(BadEvaluation, match="which is gone"):
        next(videos)
