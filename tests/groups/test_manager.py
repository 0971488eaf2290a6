"""What a turn does, which seeds are drawn, and what is told."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from parallel_envs.engine import Unpicklable, cores_here
from parallel_envs.errors import ClosedError, WorkerDied, WorkerStartError
from parallel_envs.groups import BadSettings, BadTurn, EnvStateManager, register, worker_group
from parallel_envs.groups import worker_group as core_keeping
from parallel_envs.groups.episode import Episode
from parallel_envs.groups.transport import InFlightRequest
from parallel_envs.testing.conformance import assert_same_batch
from tests.groups.walks import TAGS, Walk, WalkConfig, configured, inputs, kill_all, play


@pytest.fixture
def walks() -> Iterator[EnvStateManager]:
    with EnvStateManager(configured({"Walk": 2}, use_multiprocessing=False)) as manager:
        manager.reset(seed=3)
        yield manager


# ---- turns ----------------------------------------------------------------------------------------------------------


def test_the_first_entries() -> None:
    with EnvStateManager(configured({"Walk": 1, "Talk": 1}, use_multiprocessing=False)) as manager:
        entries = manager.reset(seed=3)
    assert [(one["env_id"], one["group_id"], one["tag"]) for one in entries] == [
        (0, 0, "Walk"),
        (1, 0, "Walk"),
        (2, 1, "Talk"),
        (3, 1, "Talk"),
    ]
    assert [len(one["history"]) for one in entries] == [1] * 4
    assert [one["history"][0]["actions_left"] for one in entries] == [8, 8, 6, 6]
    assert {one["penalty"] for one in entries} == {0.0}


def test_a_turn_adds_to_the_last_item_and_brings_the_next(walks: EnvStateManager) -> None:
    [entry] = walks.step(inputs({2: ["right", "LEFT "]}))
    done, now = entry["history"]
    assert done["actions"] == [1, -1]
    assert (done["llm_response"], done["llm_raw_response"]) == ("says 2", "raw 2")
    assert done["info"]["who"] == "walk"
    assert (done["actions_left"], now["actions_left"]) == (8, 6)
    assert now["state"].startswith(done["state"])
    assert "reward" not in now


def test_rewards_of_a_turn_are_added_up() -> None:
    with EnvStateManager(configured({"Talk": 1}, use_multiprocessing=False)) as manager:
        manager.reset(seed=1)
        entries = manager.step(inputs({0: ["abc", "de"]}))
        assert entries[0]["history"][0]["reward"] == 5.0
        assert manager.statuses[0].rewards == (5.0,)


def test_unknown_actions_are_dropped_and_penalised_once_a_turn(walks: EnvStateManager) -> None:
    entries = walks.step(inputs({0: ["right", "fly", "swim"], 1: [], 2: ["right"]}))
    assert [entry["penalty"] for entry in entries] == [-0.1, -0.1, 0.0]
    assert [entry["history"][0]["actions"] for entry in entries] == [[1], [], [1]]
    assert entries[1]["history"][1]["state"] == entries[1]["history"][0]["state"]
    assert walks.step(inputs({0: ["fly"]}))[0]["penalty"] == -0.2


@pytest.mark.filterwarnings("ignore:es_manager.format_penalty=0.25 is positive:UserWarning")
def test_the_penalty_is_added_as_it_is() -> None:
    with EnvStateManager(configured({"Walk": 1}, use_multiprocessing=False, format_penalty=0.25)) as manager:
        manager.reset(seed=1)
        assert manager.step(inputs({0: []}))[0]["penalty"] == 0.25


def test_the_allowance_cuts_off_and_truncates() -> None:
    config = configured({"Talk": 1}, use_multiprocessing=False)
    with EnvStateManager(config) as manager:
        manager.reset(seed=1)
        manager.step(inputs({0: ["a"] * 4}))
        assert [entry["env_id"] for entry in manager.step(inputs({0: ["b"] * 4, 1: ["c"]}))] == [1]
        status = manager.statuses[0]
        assert (status.num_actions, status.terminated, status.truncated, status.success) == (6, False, True, False)
        assert manager.get_rollout_states()[0]["history"][1]["actions"] == ["b", "b"]
        assert manager.get_rollout_states()[0]["penalty"] == 0.0


def test_who_ends_with_the_last_action_is_not_truncated() -> None:
    with EnvStateManager(configured({"Talk": 1}, use_multiprocessing=False)) as manager:
        manager.reset(seed=1)
        manager.step(inputs({0: ["a"] * 5 + ["please"], 1: ["please", "never heard"]}))
        for status, actions in zip(manager.statuses, (6, 1), strict=True):
            assert (status.num_actions, status.terminated, status.truncated, status.success) == (
                actions,
                True,
                False,
                True,
            )


def test_what_is_returned_is_in_the_order_of_the_inputs(walks: EnvStateManager) -> None:
    entries = walks.step(inputs({3: ["right"], 0: ["right"], 2: ["left"]}))
    assert [entry["env_id"] for entry in entries] == [3, 0, 2]
    assert walks.step([]) == []


def test_entries_that_were_returned_stay_as_they_are(walks: EnvStateManager) -> None:
    [entry] = walks.step(inputs({0: ["right"]}))
    before = (len(entry["history"]), dict(entry["history"][-1]))
    walks.step(inputs({0: ["right"]}))
    assert (len(entry["history"]), dict(entry["history"][-1])) == before


def test_pictures_are_told_beside_a_text_that_stands_for_them() -> None:
    with EnvStateManager(configured({"Pictures": 1}, max_workers=1)) as manager:
        [first, _] = manager.reset(seed=1)
    item = first["history"][0]
    assert item["state"] == "<images><images>"
    assert [image.shape for image in item["images"]] == [(2, 2, 3)] * 2


# ---- seeds ----------------------------------------------------------------------------------------------------------


def seeds(manager: EnvStateManager, seed: int | None = None) -> list[int]:
    manager.reset(seed)
    return [status.seed for status in manager.statuses]


def test_seeds_are_equal_in_a_group_and_different_otherwise() -> None:
    with EnvStateManager(configured({"Walk": 2}, use_multiprocessing=False)) as manager:
        drawn = [seeds(manager, 0), seeds(manager), seeds(manager), seeds(manager, 1)]
        assert all(one[0] == one[1] != one[2] == one[3] for one in drawn)
        assert len({number for one in drawn for number in one}) == 8
        assert seeds(manager, 0) == drawn[0]
        assert seeds(manager) == drawn[1]


def test_the_seed_of_the_configuration_is_where_training_begins() -> None:
    config = {**configured({"Walk": 2}, use_multiprocessing=False), "seed": {"train": 9}}
    drawn = []
    for _ in range(2):
        with EnvStateManager(config) as manager:
            drawn.append([seeds(manager), seeds(manager)])
            assert drawn[-1][0] == seeds(manager, 9)
    assert drawn[0] == drawn[1]
    assert drawn[0][0] != drawn[0][1]


def test_without_any_seed_runs_differ() -> None:
    config = configured({"Walk": 1}, use_multiprocessing=False)
    with EnvStateManager(config) as one, EnvStateManager(config) as other:
        assert seeds(one) != seeds(other)


def test_validation_begins_with_the_same_seeds_each_time_and_shares_none_with_training() -> None:
    config = configured({"Walk": 2}, use_multiprocessing=False)
    with EnvStateManager(config, "val") as validation, EnvStateManager({**config, "seed": 123}) as training:
        drawn = seeds(validation)
        assert seeds(validation) == drawn != seeds(validation, 5)
        assert seeds(validation) == drawn
        assert not set(drawn) & set(seeds(training))
        assert validation.reset()[0]["history"][0]["state"].startswith("val")


@pytest.mark.parametrize(("seed", "kind"), [(-1, ValueError), ("1", TypeError), (True, TypeError)])
def test_a_seed_that_is_none_changes_nothing(walks: EnvStateManager, seed: Any, kind: type[Exception]) -> None:
    before = walks.get_rollout_states()
    with pytest.raises(kind, match="Give a whole number from 0 up"):
        walks.reset(seed)
    assert_same_batch(walks.get_rollout_states(), before)


def test_global_generators_are_left_alone() -> None:
    random.seed(1)
    np.random.seed(1)
    expected = random.random(), float(np.random.random())
    random.seed(1)
    np.random.seed(1)
    with EnvStateManager(configured({"Dice": 1}, use_multiprocessing=False)) as manager:
        states = play(manager, ["throw"] * 3, seed=1)
    assert (random.random(), float(np.random.random())) == expected
    assert [item["state"] for item in states[0]["history"]] == [item["state"] for item in states[1]["history"]]


# ---- figures --------------------------------------------------------------------------------------------------------


def test_metrics_of_episodes_groups_and_tags() -> None:
    with EnvStateManager(configured({"Talk": 1, "Walk": 1}, use_multiprocessing=False)) as manager:
        manager.reset(seed=1)
        manager.step(inputs({0: ["ab", "please"], 1: ["abcd"], 2: ["right", "nonsense"], 3: ["nonsense"]}))
        manager.step(inputs({1: [], 3: ["right"]}))
        first, second, third, fourth = [entry["metrics"] for entry in manager.get_rollout_states()]
        raw = {"Talk/raw_reward": 0.0, "Talk/episodic_return": 0.0, "Talk/pass@2": 1.0}
        assert first == {"Talk/length": 6.0, "Talk/success": 1.0, "Talk/num_actions": 2.0, **raw}
        told = {"Talk/length": 2.0, "Talk/success": 0.0, "Talk/num_actions": 1.0}
        assert second == {**told, **raw, "Talk/manager_invalid_action": 0.5}
        assert third["Walk/action_is_valid"] == 1.0
        assert fourth["Walk/action_is_valid"] == 0.5
        assert third["Walk/far"] == third["Walk/place"] == fourth["Walk/far"]
        assert "Walk/who" not in third
        means = manager.metrics()
        assert (means["Talk/success"], means["Talk/pass@2"], means["Talk/length"]) == (0.5, 1.0, 4.0)
        assert (means["Walk/failed"], means["Walk/pass@2"]) == (0.0, 0.0)


def test_rendering() -> None:
    with EnvStateManager(configured({"Walk": 1, "Lake": 1}, max_workers=1)) as manager:
        entries = manager.reset(seed=1)
        assert manager.render() == [entry["history"][0]["state"] for entry in entries]
        with pytest.raises(ValueError, match=r"kwargs: \{render_mode: rgb_array\}"):
            manager.render("rgb_array")
        pictures = manager.render("rgb_array", env_ids=[]), manager.render(env_ids=[3, 0])
        assert pictures == ([], [entries[3]["history"][0]["state"], entries[0]["history"][0]["state"]])
        with pytest.raises(BadTurn, match="asked for env 4, and there are envs 0 to 3"):
            manager.render(env_ids=[4])
        assert len(manager.step(inputs({env: ["down", "right"] for env in range(4)}))) == 4


class Secretive(Walk):
    """Cannot tell how it is doing before it has jumped."""

    def metrics(self) -> dict[str, float]:
        if self.place < 3:
            raise ValueError("not yet")
        return {}


class Invisible(Walk):
    """Cannot be shown."""

    def render(self, mode: str = "text") -> str:
        os._exit(3)


def configured_with(kind: type[Walk], **said: Any) -> dict[str, Any]:
    """A group of walks, and one of these."""
    register("special", kind, WalkConfig)
    config = configured({"Walk": 2}, **said)
    config["es_manager"]["train"]["env_configs"] = {"tags": ["Walk", "Special"], "n_groups": [1, 1]}
    config["custom_envs"]["Special"] = {"env_type": "special", "max_actions_per_traj": 2}
    return config


@pytest.mark.parametrize("use_multiprocessing", [True, False])
def test_who_cannot_tell_its_own_metrics_keeps_nobodys_from_being_told(use_multiprocessing: bool) -> None:
    config = configured_with(Secretive, max_workers=1, use_multiprocessing=use_multiprocessing)
    with EnvStateManager(config) as manager:
        manager.reset(seed=1)
        manager.step(inputs({env: ["right"] for env in range(2)}))
        states = manager.get_rollout_states()
        assert ["not yet" in str(entry.get("failure")) for entry in states] == [False, False, True, True]
        assert states[2]["metrics"] == {"Special/failed": 1.0}
        assert states[0]["metrics"]["Walk/num_actions"] == 1.0
        assert (manager.metrics()["Special/failed"], manager.metrics()["Walk/failed"]) == (1.0, 0.0)
        entries = manager.step(inputs({env: ["right"] for env in range(4)}))
        assert ["failure" in entry for entry in entries] == [False] * 4


def test_an_episode_that_is_over_stays_as_it_was_whatever_showing_it_does() -> None:
    with EnvStateManager(configured_with(Invisible, max_workers=1)) as manager:
        manager.reset(seed=1)
        manager.step(inputs({2: ["left", "left"]}))
        before = manager.statuses
        with pytest.raises(WorkerDied):
            manager.render(env_ids=[2])
        assert before[2].done
        assert manager.statuses == before


# ---- where ----------------------------------------------------------------------------------------------------------


def test_multiprocessing_can_be_switched_at_any_time() -> None:
    told = []
    for switches in ((), (False,), (False, True)):
        with EnvStateManager(configured({"Walk": 1}, max_workers=1)) as manager:
            manager.reset(seed=1)
            for number, action in enumerate(("jump", "left", "left")):
                if number < len(switches):
                    manager.use_multiprocessing = switches[number]
                manager.step(inputs({0: [action], 1: [action]}))
            assert manager.stats().num_workers == (0 if switches == (False,) else 1)
            told.append(manager.get_rollout_states())
    assert_same_batch(told[1], told[0])
    assert_same_batch(told[2], told[0])


def test_switched_off_before_the_first_reset_there_is_no_worker() -> None:
    with EnvStateManager(configured({"Walk": 1})) as manager:
        manager.use_multiprocessing = False
        manager.reset(seed=1)
        assert manager.stats().in_caller == ("Walk",)
        with pytest.raises(TypeError, match="neither True nor False"):
            manager.use_multiprocessing = "no"  # type: ignore[assignment]  # a mistake


def test_where_each_tag_lives() -> None:
    config = configured({"Walk": 1, "Talk": 1, "Dice": 1, "Lake": 1}, max_workers=1, sequential_env_types=["talk"])
    register("dice", Walk, light=True)
    config["custom_envs"]["Lake"] = {**TAGS["Lake"], "where": "caller"}
    with EnvStateManager(config) as manager:
        manager.reset(seed=1)
        assert manager.stats().in_caller == ("Talk", "Dice", "Lake")
        assert manager.stats().num_workers == 1


def rooms(**said: Any) -> dict[str, Any]:
    config = configured({"Walk": 2}, 4, **said)
    config["custom_envs"]["Walk"] = {"env_type": "sokoban", "env_config": {"num_boxes": 1}, "max_actions_per_traj": 9}
    return config


def test_the_caller_is_one_of_the_workers_where_that_is_known_to_be_safe() -> None:
    """A worker less, the same entries, and a worker that is killed costs nobody anything."""
    told = []
    for workers, processes in ((0, 0), (1, 1), (2, 1), (5, 4)):
        with EnvStateManager(rooms(max_workers=workers or 1, use_multiprocessing=bool(workers))) as manager:
            entries = [manager.reset(seed=1)]
            for actions in (["Up", "Left", "Up"], ["Right", "sing"], ["Down", "Down", "Right", "Left"]):
                entries.append(manager.step(inputs({entry["env_id"]: actions for entry in entries[-1]})))
                if workers:
                    kill_all(manager)
            assert manager.stats().num_workers == processes
            told.append([*entries, manager.get_rollout_states(), manager.statuses])
    for others in told[1:]:
        assert_same_batch(others, told[0])


def test_beside_others_the_caller_steps_no_share() -> None:
    config = rooms(max_workers=2)
    config["custom_envs"]["Other"] = {"env_type": "walk"}
    config["es_manager"]["train"]["env_configs"] = {"tags": ["Walk", "Other"], "n_groups": [1, 1]}
    with EnvStateManager(config) as manager:
        manager.reset(seed=1)
        assert (manager.stats().num_workers, manager.stats().in_caller) == (2, ())


def test_who_waits_is_not_to_wait_in_the_caller() -> None:
    config = rooms()
    config["custom_envs"]["Walk"] |= {"where": "both", "parallel_friendly": True}
    with pytest.raises(BadSettings, match=r"`custom_envs\.Walk` is parallel_friendly and lives in both places"):
        EnvStateManager(config)


def test_a_reset_keeps_the_workers() -> None:
    with EnvStateManager(configured({"Forgetful": 2}, max_workers=2)) as manager:
        pids = [[entry["history"][0]["state"].split()[0] for entry in manager.reset()] for _ in range(3)]
        assert pids[0] == pids[1] == pids[2]
        assert len(set(pids[0])) == 2


def test_payload_is_flat_over_an_episode() -> None:
    config = configured({"Talk": 2}, 2, max_workers=1)
    config["custom_envs"]["Talk"] = {**TAGS["Talk"], "max_actions_per_traj": 1000}
    register("talk", Echo)
    with EnvStateManager(config) as manager:
        manager.reset(seed=1)
        sizes = []
        for _ in range(50):
            before = manager.stats().num_bytes
            manager.step(inputs({env: ["hello"] for env in range(4)}))
            sizes.append(manager.stats().num_bytes - before)
        assert max(sizes[1:]) - min(sizes[1:]) <= 64  # numbers grow longer by a byte or two


class Echo:
    """Says what it hears."""

    def __init__(self, config: Any) -> None:
        self.config = config

    def reset(self, seed: int, mode: str) -> str:
        return "say"

    def step(self, action: str) -> Any:
        return action, 1.0, False, False, {"n": 1}


class Meeting(Echo):
    """A step that is over only when three others are at the same point: all four must be stepped at once."""

    barrier: threading.Barrier | None = None

    def step(self, action: str) -> Any:
        if Meeting.barrier is None:
            Meeting.barrier = threading.Barrier(4)
        Meeting.barrier.wait(30.0)
        return super().step(action)


@pytest.mark.skipif(len(cores_here()) < 2, reason="there is one core, or the system does not tell")
@pytest.mark.parametrize(("seconds", "kept"), [(60.0, True), (0.0, False)])
def test_workers_are_kept_on_cores_once_turns_are_short(
    seconds: float, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cores = cores_here()
    monkeypatch.setattr(core_keeping, "cores_here", lambda: cores[:2])
    monkeypatch.setattr(core_keeping, "_SHORT_SECONDS", seconds)
    with EnvStateManager(configured({"Walk": 1}, max_workers=2)) as manager:
        manager.reset(seed=1)
        for _ in range(4):
            manager.step(inputs({0: ["fly"], 1: ["fly"]}))
        assert manager._placement is not None
        assert manager._placement.workers is not None
        pool = manager._placement.workers.pool
        places = [os.sched_getaffinity(pool.pid(worker)) for worker in pool.all_workers]
    assert places == ([{cores[0]}, {cores[1]}] if kept else [set(cores)] * 2)


def test_environments_that_wait_are_stepped_at_once() -> None:
    register("meeting", Meeting)
    config = configured({"Talk": 2}, 2, max_workers=1)
    config["custom_envs"]["Talk"] = {"env_type": "meeting", "parallel_friendly": True}
    with EnvStateManager(config) as manager:
        manager.reset(seed=1)
        entries = manager.step(inputs({env: ["now"] for env in range(4)}))
        assert [entry["history"][-1]["state"] for entry in entries] == ["now"] * 4


# ---- its life -------------------------------------------------------------------------------------------------------


def test_where_no_worker_starts_all_live_in_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> Any:
        raise WorkerStartError("there is no room")

    monkeypatch.setattr(worker_group, "open_pool", refuse)
    expected = play(EnvStateManager(configured({"Walk": 1}, use_multiprocessing=False)), ["jump", "left"], 1)
    with EnvStateManager(configured({"Walk": 1})) as manager:
        with pytest.warns(RuntimeWarning, match="there is no room.*in the caller instead") as caught:
            manager.reset(seed=1)
        assert caught[0].filename == __file__
        assert_same_batch(play(manager, ["jump", "left"], 1), expected)


def test_what_cannot_travel_is_named() -> None:
    lock = threading.Lock()
    register("locked", lambda config: lock)
    config = configured({"Walk": 1})
    config["custom_envs"]["Walk"] = {"env_type": "locked"}
    told = r"the factory of 'Walk' -> variable 'lock'.*where: caller"
    with EnvStateManager(config) as manager, pytest.raises(Unpicklable, match=told):
        manager.reset()


def test_an_interrupted_turn_did_not_happen(monkeypatch: pytest.MonkeyPatch) -> None:
    with EnvStateManager(configured({"Walk": 1}, max_workers=1)) as manager:
        manager.reset(seed=1)
        manager.step(inputs({0: ["jump"], 1: ["left"]}))
        before = manager.get_rollout_states()
        with monkeypatch.context() as patch:
            patch.setattr(worker_group.WorkerGroup, "end", interrupted)
            with pytest.raises(KeyboardInterrupt):
                manager.step(inputs({0: ["jump"], 1: ["left"]}))
        assert_same_batch(manager.get_rollout_states(), before)
        entries = manager.step(inputs({0: ["left"], 1: ["left"]}))
        assert [entry["history"][-1]["state"].count(" ") for entry in entries] == [2, 2]


def interrupted(self: worker_group.WorkerGroup, asked: InFlightRequest, read: Any) -> Any:
    """A Ctrl-C when the worker has done its part, and nobody has heard of it."""
    for ticket in asked.requests.values():
        self.pool.wait(ticket)
    raise KeyboardInterrupt


class Shy:
    """What shows itself to nobody who would copy it."""

    def __deepcopy__(self, memo: Any) -> Any:
        raise ValueError("no copies of this")


class Hiding(Walk):
    """Shows something that cannot be copied, if it jumps."""

    def step(self, action: int) -> Any:
        state, *rest = super().step(action)
        return (Shy() if action == 7 else state, *rest)


def test_a_state_that_cannot_be_kept_is_the_failure_of_one_environment() -> None:
    register("walk", Hiding, WalkConfig)
    with EnvStateManager(configured({"Walk": 2}, max_workers=1)) as manager:
        manager.reset(seed=1)
        entries = manager.step(inputs({0: ["right"], 1: ["jump"], 2: ["right"]}))
        assert [entry["env_id"] for entry in entries if "failure" in entry] == [1]
        assert "no copies of this" in str(entries[1]["failure"])
        assert [status.num_actions for status in manager.statuses] == [1, 0, 1, 0]
        entries = manager.step(inputs({env: ["left"] for env in (0, 2, 3)}))
        assert [len(entry["history"][-1]["state"].split()) for entry in entries] == [3, 3, 2]


def test_a_ctrl_c_waits_until_a_turn_has_been_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    with EnvStateManager(configured({"Walk": 1}, max_workers=1)) as manager:
        manager.reset(seed=1)

        def struck(episode: Episode, name: str, value: Any) -> None:
            if name == "state":
                signal.raise_signal(signal.SIGINT)
            object.__setattr__(episode, name, value)

        with monkeypatch.context() as patch:
            patch.setattr(Episode, "__setattr__", struck)
            with pytest.raises(KeyboardInterrupt):
                manager.step(inputs({0: ["left"], 1: ["right"]}))
        assert [status.num_actions for status in manager.statuses] == [1, 1]
        entries = manager.step(inputs({0: ["right"], 1: ["right"]}))
        assert [len(entry["history"][-1]["state"].split()) for entry in entries] == [3, 3]


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, lambda manager: pickle.loads(pickle.dumps(manager))])
def test_a_copy_goes_on_from_where_the_episodes_stand(copied: Callable[[EnvStateManager], EnvStateManager]) -> None:
    with EnvStateManager(configured({"Walk": 1, "Dice": 1}, max_workers=1)) as manager:
        manager.reset(seed=1)
        manager.step(inputs({0: ["jump"], 1: ["left"], 2: ["throw"]}))
        turn = inputs({0: ["jump"], 3: ["throw"]})
        with copied(manager) as other:
            there = other.step(turn)
            began = other.reset(seed=2)
        assert_same_batch(manager.step(turn), there)
        assert [status.num_actions for status in manager.statuses] == [2, 1, 1, 1]
        assert_same_batch(manager.reset(seed=2), began)


def test_closing() -> None:
    manager = EnvStateManager(configured({"Walk": 1}, max_workers=1))
    manager.close()
    manager = EnvStateManager(configured({"Walk": 1}, max_workers=1))
    manager.reset(seed=1)
    assert repr(manager) == "EnvStateManager(train, 1 groups of 2, 2 unfinished)"
    manager.close()
    manager.close()
    assert "closed" in repr(manager)
    for call in (manager.reset, lambda: manager.step([]), manager.render, manager.get_rollout_states):
        with pytest.raises(ClosedError, match="Make another one"):
            call()


class Modules(Echo):
    """Tells what its process has loaded."""

    def reset(self, seed: int, mode: str) -> str:
        return " ".join(sys.modules)


def test_a_worker_brings_in_no_heavy_library() -> None:
    register("modules", Modules)
    config = configured({"Talk": 1}, max_workers=1)
    config["custom_envs"]["Talk"] = {"env_type": "modules", "parallel_friendly": True}
    with EnvStateManager(config) as manager:
        loaded = set(manager.reset()[0]["history"][0]["state"].split())
    assert "parallel_envs.groups.env_host" in loaded
    assert not loaded & {"torch", "pydantic", "typer", "rich", "pettingzoo"}


def test_a_manager_that_is_forgotten_leaves_nothing() -> None:
    manager = EnvStateManager(configured({"Walk": 1}, max_workers=1))
    manager.reset(seed=1)
    del manager
    gc.collect()  # the check around every test says whether a process or a descriptor is left
