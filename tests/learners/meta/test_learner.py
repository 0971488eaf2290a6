"""The learner as a whole: the same numbers on every path, nothing lost, and it learns."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from gymnasium.spaces import Discrete

from parallel_envs import ClosedError, EnvError
from parallel_envs.learners.algorithm import Diverged, NothingLearnt, Plan, UpdateReport, update_one
from parallel_envs.learners.config import BadSettings
from parallel_envs.learners.meta import Learner, agent
from parallel_envs.learners.parameters import AgentParameters
from parallel_envs.learners.run_folder import CheckpointNotSaved, newest_checkpoint, read_metrics
from parallel_envs.rollouts.replay import CpprbPriorities, SumTree
from tests.learners.full_disk import full_disk
from tests.learners.meta.families import DQN, FAST, PPO, SAC, settings

SLOW = pytest.mark.slow


def weights(learner: Learner) -> Any:
    return learner.agent.parameters.matrix.weights.numpy().copy()


def trained(given: dict[str, Any], parallel: bool = True) -> list[Any]:
    """Two iterations, the first of which acts at random: the rollouts of both, the weights, and how it adapts."""
    found: list[Any] = []
    with Learner(given) as learner:
        for is_random in (True, False):
            envs = learner.train_env_parallel if parallel else None
            steps = learner.collect_rollouts_parallel(6, random_actions=is_random, parallel_env=envs)
            rollouts = learner.last_rollouts
            found.append([(one.id, one.seed, one.chain.tolist(), one.actions.tolist()) for one in rollouts])
            assert steps == sum(map(len, rollouts))
            learner.update()
        assert found[0] != found[1]
        return [*found, weights(learner).tolist(), learner.evaluate().returns.tolist()]


@pytest.mark.parametrize("how", [{"workers": 2, "backend": "process"}, {"env__num_envs": 4}])
def test_the_parallel_path_brings_the_numbers_of_the_sequential_one(how: dict[str, Any]) -> None:
    with Learner(settings()) as learner:
        assert learner.train_env_parallel is None  # of one worker
    assert trained(settings(train__exact=True, **how)) == trained(settings(train__exact=True), parallel=False)


@pytest.mark.parametrize("fault", ["sigkill", *(pytest.param(one, marks=SLOW) for one in ("exception", "sleep"))])
def test_training_goes_on_after_a_failure_and_counts_it(
    fault: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The results equal those without the failure: the rollout is played again from its beginning."""
    kwargs = {"once": str(tmp_path / "broken"), "fault": fault}
    given = settings("Broken", workers=2, backend="process", env__env_kwargs=kwargs, env__step_timeout=2.0)
    given["train"]["exact"] = True
    with Learner(given) as learner, Learner(settings(train__exact=True)) as reference:
        learner.train(tmp_path / "run")
        reference.train(tmp_path / "reference")
        np.testing.assert_array_equal(weights(learner), weights(reference))
    assert read_metrics(tmp_path / "run")[-1]["restarts"] == 1
    assert read_metrics(tmp_path / "reference")[-1]["restarts"] == 0
    assert "Restarts of environments: 1. The last was of env" in caplog.text
    assert (tmp_path / "broken").exists()
    assert fault == "sigkill" or "_inflict" in caplog.text  # where it was


def test_a_failure_ends_training_where_that_is_asked_for_or_it_comes_again(tmp_path: Path) -> None:
    ways: list[tuple[str, dict[str, Any], str]] = [
        ("process", {"env__on_failure": "raise"}, "Learner.resume("),
        ("serial", {"env__max_restarts": 2}, "as often as max_restarts allows"),
    ]
    for backend, words, note in ways:
        given = settings("Broken", workers=2, backend=backend, env__env_kwargs={"fault": "exception"}, **words)
        with Learner(given) as learner, pytest.raises(EnvError) as caught:
            learner.train(tmp_path / backend)
        assert any(note in one for one in caught.value.__notes__)
    with Learner(settings(workers=2, env__step_timeout=7.0, env__manager_options={"reset_timeout": 9.0})) as learner:
        envs: Any = learner.train_env_parallel
        assert (envs.on_failure, envs.step_timeout, envs.reset_timeout) == ("restart", 7.0, 9.0)


def test_evaluation_changes_nothing_is_repeated_to_the_bit_and_has_tasks_of_its_own() -> None:
    with Learner(settings(env__num_envs=2)) as learner, Learner(settings(env__num_envs=2)) as other:
        assert learner.eval_env is not learner.train_env
        assert learner.eval_env_parallel is not learner.train_env_parallel
        assert learner.train_tasks is not None
        assert not set(learner.train_tasks) & set(learner.eval_tasks)
        first = learner.evaluate(2)
        np.testing.assert_array_equal(learner.evaluate(2).returns, first.returns)
        assert (first.returns.shape, first.curve.shape) == ((8, 3), (3,))
        assert first.total == pytest.approx(first.returns.sum(1).mean())
        assert sorted(first.task_ids.tolist()) == sorted([task.id for task in learner._envs.tasks.eval_tasks] * 2)
        for one in (learner, other):
            one.collect_rollouts_parallel(40, parallel_env=one.train_env_parallel)
            one.update()
        assert {one.task for one in learner.last_rollouts} == set(learner.train_tasks)
        np.testing.assert_array_equal(weights(learner), weights(other))


def test_updates_that_were_undone_are_told_and_fail_a_run_that_has_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Learner(settings("Poisoned")) as learner:
        before = weights(learner)
        with pytest.raises(NothingLearnt, match=r"every update was undone.*lower learning_rate"):
            learner.train(tmp_path / "run")
        assert (learner.num_iters_done, learner.agent.counters["skipped"]) == (2, 2)
        np.testing.assert_array_equal(weights(learner), before)
    assert newest_checkpoint(tmp_path / "run") is not None
    with Learner(settings("Poisoned", train__on_divergence="raise")) as learner:
        with pytest.raises(Diverged, match="The agent has learnt nothing"):
            learner.train(tmp_path / "ended")
        assert learner.num_iters_done == 0
    with Learner(settings("Poisoned", env__env_kwargs={"num_steps": 5}, train__num_iters=3)) as learner:
        learner.train(tmp_path / "some")
    assert "Updates that were not finite, and undone: meta 1 of 3." in caplog.text
    (own,) = read_metrics(tmp_path / "some")[-1]["agents"].values()
    assert own["skipped"] == 1


def test_training_goes_on_where_the_disk_was_full_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    with full_disk(folder) as disk, Learner({**settings(train__num_iters=4), "checkpoint_every": 1}) as learner:
        save, kept = learner.save, []

        def saved(where: Any) -> None:
            if learner.num_iters_done == 2:
                disk.fill(times=2)
            save(where)
            kept.append(learner.num_iters_done)

        monkeypatch.setattr(learner, "save", saved)
        learner.train(folder)
        assert kept == [1, 3, 4]
    with full_disk(tmp_path / "full" / "checkpoints") as disk, Learner(settings(train__num_iters=4)) as learner:
        disk.fill()
        with pytest.raises(CheckpointNotSaved, match="No space left on device"):
            learner.train(tmp_path / "full")


POOL: dict[str, Any] = {"train__num_init_rollouts_pool": 3, "train__num_updates_per_iter": 2}
RUNS: dict[str, dict[str, Any]] = {
    "ppo": settings(),
    "dqn": settings(policy__arch="markov", policy__algorithm=DQN, **POOL),
    "prioritized": settings(
        policy__arch="markov", policy__algorithm={**DQN, "prioritized": 0.6, "dueling": True, "num_steps": 2}
    ),
    "memory dqn": settings(policy__algorithm={**DQN, "batch_size": 4}, **POOL),
    "memory sac": settings(policy__algorithm={**SAC, "batch_size": 4}, **POOL),
    "memory markov sac": settings(policy__arch="memory_markov", policy__algorithm={**SAC, "batch_size": 4}),
    "fast weights ppo": settings(policy__arch="memory_markov", policy__memory=FAST),
    "fast weights dqn": settings(policy__memory=FAST, policy__algorithm={**DQN, "batch_size": 4}, **POOL),
}
for name, content in RUNS.items():
    if "sac" in name:
        content["env"] |= {"env_name": "PointRobotSparse-v0", "env_kwargs": {"horizon": 5}}
    content["train"] |= {"num_iters": 5, "exact": False}
    content |= {"checkpoint_every": 2}

SOME_RUNS = [
    name if name in ("ppo", "prioritized", "fast weights dqn") else pytest.param(name, marks=SLOW) for name in RUNS
]


def lines(folder: Path) -> list[dict[str, Any]]:
    return [{name: value for name, value in line.items() if name != "seconds"} for line in read_metrics(folder)]


@pytest.mark.parametrize("name", SOME_RUNS)
def test_a_run_that_is_resumed_goes_on_as_one_that_was_never_ended(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Learner(RUNS[name]) as learner:
        learner.train(tmp_path / "whole")
        wanted, reference = weights(learner), learner.agent.counters
    with Learner(RUNS[name]) as learner, monkeypatch.context() as patched:
        update = learner.update

        def pulled(*given: Any) -> Any:
            if learner.num_iters_done == 3:
                raise MemoryError("the plug was pulled")
            return update(*given)

        patched.setattr(learner, "update", pulled)
        with pytest.raises(MemoryError):
            learner.train(tmp_path / "cut")
    assert len(lines(tmp_path / "cut")) == 3
    with Learner.resume(tmp_path / "cut", trust=["tests"]) as learner:
        assert learner.num_iters_done == 2
        assert learner.train() == tmp_path / "cut"
        np.testing.assert_array_equal(weights(learner), wanted)
        assert learner.agent.counters == reference
    assert lines(tmp_path / "cut") == lines(tmp_path / "whole")
    said = yaml.safe_load((tmp_path / "whole" / "settings.yaml").read_text(encoding="utf-8"))
    elsewhere = {"rollout_length", "learning_starts", "train_interval"}
    assert said["policy"]["algorithm"].keys() == {"name", *dataclasses.asdict(learner._config)} - elsewhere
    with Learner(said) as again:  # its settings say everything, and mean the same
        assert (again._config, again._memory) == (learner._config, learner._memory)


Reference = Callable[[str], tuple[dict[str, Any], Path, Any]]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """Settings by the algorithm's name, the run of a learner that nothing struck, and its weights."""

    @functools.cache
    def train(name: str) -> tuple[dict[str, Any], Path, Any]:
        pool: dict[str, Any] = {"train__num_init_rollouts_pool": 5} if name == "dqn" else {}
        algorithm = {"ppo": PPO, "dqn": DQN}[name]
        given = settings(policy__algorithm=algorithm, train__num_iters=5, eval__interval=2, train__exact=True, **pool)
        with Learner({**given, "checkpoint_every": 2}) as learner:
            return given, learner.train(tmp_path_factory.mktemp(name) / "whole"), weights(learner)

    return train


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
@pytest.mark.parametrize("call", [1, 3])
@pytest.mark.parametrize("moments", [("policy",), ("lived",), ("update",), ("lived", "update")], ids="+".join)
def test_a_learner_that_ctrl_c_has_struck_goes_on_as_if_it_had_not_also_from_its_checkpoint(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    moments: tuple[str, ...],
    call: int,
    algorithm: str,
    reference: Reference,
) -> None:
    """It is struck while it acts, while it takes over what was lived, while it learns, and twice in one iteration."""
    given, whole, wanted = reference(algorithm)
    with Learner({**given, "checkpoint_every": 2}) as learner:
        with monkeypatch.context() as patched:
            for moment in moments:
                owner = learner if moment == "update" else learner.agent
                patched.setattr(owner, moment, _struck_in(call, getattr(owner, moment)))
            with pytest.raises(KeyboardInterrupt):
                learner.train(tmp_path / "struck")
        done = learner.num_iters_done
        assert [line["update"] for line in lines(tmp_path / "struck")] == list(range(1, done + 1))
        shutil.copytree(tmp_path / "struck", tmp_path / "again")
        learner.train()
        np.testing.assert_array_equal(weights(learner), wanted)
    with Learner.resume(tmp_path / "again", trust=["tests"]) as learner:
        assert learner.num_iters_done == done
        learner.train()
        np.testing.assert_array_equal(weights(learner), wanted)
    assert lines(tmp_path / "again") == lines(tmp_path / "struck") == lines(whole)


def test_a_run_is_in_its_folder_keeps_what_it_depends_on_and_ends_at_so_many_steps(tmp_path: Path) -> None:
    untold = settings(env__env_kwargs={"action_space": Discrete(2)})
    with Learner(untold) as learner, pytest.raises(BadSettings, match="cannot be written down"):
        learner.train(tmp_path / "untold")
    with Learner(settings(train__num_iters=None)) as learner:
        learner._start_training(tmp_path / "default")
    assert yaml.safe_load((tmp_path / "default" / "settings.yaml").read_text())["train"]["num_iters"] == 100
    given = settings(train__n_env_steps_total=130, eval__interval=2)
    del given["train"]["num_iters"]
    with Learner(given) as learner:
        folder = learner.train(tmp_path / "run")
        assert learner.finished
        assert (learner.num_iters_done, learner.num_env_steps) == (3, 180)  # of 6 rollouts of 10 steps each
        last = learner.evaluate()
    written = read_metrics(folder)
    assert [(line["update"], line["rollouts"]) for line in written] == [(1, 6), (2, 12), (3, 18)]
    assert ["evaluation" in line for line in written] == [False, True, True]
    assert written[-1]["evaluation"]["by_episode"] == last.curve.tolist()
    assert "return" in written[0]["agents"]["meta"]
    about = json.loads((folder / "checkpoints" / f"{written[-1]['steps']:09}" / "checkpoint.json").read_text())
    assert about["about"]["num_iters_done"] == 3
    with pytest.raises(FileExistsError), Learner(settings()) as other:
        other.train(folder)
    with Learner.resume(folder, trust=["tests"], device="cpu:0") as learner:
        assert learner.device == "cpu:0"
    with pytest.raises(BadSettings, match=r"device='cdua' is unknown.*Did you mean 'cuda'"):
        Learner.resume(folder, trust=["tests"], device="cdua")
    with pytest.raises(BadSettings, match=r"`seed` is what the run in .* depends on"):
        Learner.resume(folder, trust=["tests"], seed=5)
    more = {"train.n_env_steps_total": 190, "env.num_envs": 2}
    with Learner.resume(folder, trust=["tests"], **more) as learner:
        assert not learner.finished
        learner.train()
        assert learner.num_iters_done == 4


def _struck_in(call: int, function: Any) -> Any:
    """The function, in one call of which Ctrl-C is pressed."""
    calls = iter(range(1, 100))

    def struck(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == call:
            os.kill(os.getpid(), signal.SIGINT)
        return function(*args, **kwargs)

    return struck


def test_an_agent_may_begin_with_what_another_has_learnt_and_goes_on_without_it(tmp_path: Path) -> None:
    with Learner(settings()) as learner:
        folder = learner.train(tmp_path / "run")
        wanted = weights(learner)
    with Learner(settings(policy__begin_with=folder), seed=5) as learner:
        np.testing.assert_array_equal(weights(learner), wanted)
        assert learner.agent.counters["updates"] == 0
        learner.train(tmp_path / "second")
        wanted = weights(learner)
    with pytest.raises(BadSettings, match=r"`policy\.begin_with: .*` cannot be taken.*another architecture"):
        Learner(settings(policy__begin_with=folder, policy__algorithm={**PPO, "hidden": [9]}))
    shutil.rmtree(folder)
    with pytest.raises(BadSettings, match=r"`policy\.begin_with: .*` cannot be taken"):
        Learner(settings(policy__begin_with=folder))
    with Learner.resume(tmp_path / "second", trust=["tests"]) as learner:
        np.testing.assert_array_equal(weights(learner), wanted)
    learner.close()
    with pytest.raises(ClosedError, match="has been closed"):
        learner.collect_rollouts(1)


def test_the_learning_rate_falls_in_a_straight_line_and_rollouts_that_end_early_make_one_minibatch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm = {**PPO, "learning_rate": 0.8, "minibatch_size": 144}  # of 6 rollouts of 10 steps, where 24 may be
    given = settings(train__num_iters=4, train__last_learning_rate=0.5, policy__algorithm=algorithm)
    rates: list[float] = []

    def noted(parameters: AgentParameters, plan: Plan) -> UpdateReport:
        assert plan.learning_rate is not None
        rates.append(plan.learning_rate)
        report = update_one(parameters, plan)
        assert report.metrics["steps"] == PPO["num_epochs"]
        return report

    monkeypatch.setattr(agent, "update_one", noted)
    with Learner(given) as learner:
        learner.train(tmp_path / "run")
        config: Any = learner.agent.config
        assert config.minibatch_size == 144  # the next batch may be larger
    assert rates == pytest.approx([0.8, 0.7, 0.6, 0.5])


SWITCH: dict[str, Any] = {"max_rollouts_per_task": 4, "num_train_tasks": 2, "num_eval_tasks": 2, "share_tasks": True}
PPO_OF_SWITCH = {"name": "ppo", "hidden": [16], "memory_size": 16, "minibatch_size": 100, "learning_rate": 0.01}
DQN_OF_SWITCH = {**DQN, "batch_size": 32, "learning_rate": 0.01, "exploration_steps": 400}
GRU, OFTEN = {"name": "gru"}, {"num_rollouts_per_iter": 20, "num_updates_per_iter": 15}


@pytest.mark.parametrize(
    ("arch", "memory", "algorithm", "train", "num_iters", "least", "most"),
    [
        ("memory", GRU, PPO_OF_SWITCH, {"num_rollouts_per_iter": 100}, 15, 3.3, 4.0),
        pytest.param("markov", GRU, PPO_OF_SWITCH, {"num_rollouts_per_iter": 100}, 15, 1.0, 2.6, marks=SLOW),
        pytest.param("memory", GRU, DQN_OF_SWITCH, OFTEN, 12, 3.3, 4.0, marks=SLOW),
        ("memory", FAST, DQN_OF_SWITCH, OFTEN, 12, 3.3, 4.0),
    ],
)
def test_an_agent_that_remembers_learns_to_learn(
    arch: str, memory: Any, algorithm: Any, train: Any, num_iters: int, least: float, most: float
) -> None:
    """Which of two actions is right must be found out anew on each task: 3.5 of 4 at best, 2 of 4 without a memory."""
    given = settings("Switch", env__num_envs=16, policy__arch=arch, eval__num_rollouts_per_task=50)
    given["env"] |= SWITCH
    given["train"] = train
    given["policy"] |= {"algorithm": algorithm, "memory": memory} if arch == "memory" else {"algorithm": algorithm}
    given["eval"]["deterministic"] = algorithm["name"] == "dqn"
    with Learner(given) as learner:
        for _ in range(num_iters):
            learner.collect_rollouts_parallel(train["num_rollouts_per_iter"], parallel_env=learner.train_env_parallel)
            learner.update()
        assert least <= learner.evaluate().total <= most


def test_the_sampler_of_prioritized_dqn_is_the_one_that_was_named() -> None:
    pytest.importorskip("cpprb")
    for sampler, kind in (("cpprb", CpprbPriorities), ("tree", SumTree)):
        algorithm = {**DQN, "prioritized": 0.6, "sampler": sampler}
        with Learner(settings(policy__arch="markov", policy__algorithm=algorithm)) as learner:
            memory: Any = learner.agent.memory
            assert isinstance(memory._priorities, kind)
