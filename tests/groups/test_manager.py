"""What a turn does, which seeds are drawn, what is told, and how a manager lives and ends."""

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
from itertools import zip_longest
from typing import Any

import numpy as np
import pytest

from parallel_envs.engine import Unpicklable
from parallel_envs.errors import ClosedError, WorkerDied, WorkerStartError
from parallel_envs.groups import BadSettings, BadTurn, EnvStateManager, env_workers, register
from parallel_envs.groups.episode import Episode
from parallel_envs.testing.conformance import assert_same_batch
from tests.groups.walks import TAGS, Walk, WalkConfig, begun, configured, inputs, kill_all, of_block, play


@pytest.fixture
def walks() -> Iterator[EnvStateManager]:
    with begun({"Walk": 2}, seed=3) as manager:
        yield manager


# ---- turns ----------------------------------------------------------------------------------------------------------


def test_the_first_entries() -> None:
    with EnvStateManager(configured({"Walk": 1, "Talk": 1}, use_multiprocessing=False)) as manager:
        entries = manager.reset(seed=3)
    named = [(one["env_id"], one["group_id"], one["tag"]) for one in entries]
    assert named == [(0, 0, "Walk"), (1, 0, "Walk"), (2, 1, "Talk"), (3, 1, "Talk")]
    assert [[item["actions_left"] for item in one["history"]] for one in entries] == [[8], [8], [6], [6]]
    assert {one["penalty"] for one in entries} == {0.0}


def test_a_turn_adds_to_the_last_item_and_brings_the_next_and_what_was_returned_stays(walks: EnvStateManager) -> None:
    [entry] = walks.step(inputs({2: ["right", "LEFT "]}))
    done, now = entry["history"]
    assert (done["actions"], done["llm_response"], done["llm_raw_response"]) == ([1, -1], "says 2", "raw 2")
    assert (done["info"]["who"], done["actions_left"], now["actions_left"]) == ("walk", 8, 6)
    assert now["state"].startswith(done["state"])
    assert "reward" not in now
    before = (len(entry["history"]), dict(now))
    third, first = walks.step(inputs({2: ["right"], 0: ["left"]}))
    assert (third["env_id"], first["env_id"]) == (2, 0)  # in the order of the inputs
    assert (len(entry["history"]), now) == before
    assert walks.step([]) == []


def test_unknown_actions_are_dropped_and_penalised_once_a_turn(walks: EnvStateManager) -> None:
    entries = walks.step(inputs({0: ["right", "fly", "swim"], 1: [], 2: ["right"]}))
    assert [entry["penalty"] for entry in entries] == [-0.1, -0.1, 0.0]
    assert [entry["history"][0]["actions"] for entry in entries] == [[1], [], [1]]
    assert entries[1]["history"][1]["state"] == entries[1]["history"][0]["state"]
    assert walks.step(inputs({0: ["fly"]}))[0]["penalty"] == -0.2


def test_rewards_of_a_turn_are_added_up_and_the_allowance_cuts_off_and_truncates() -> None:
    with begun({"Talk": 1}) as manager:
        assert manager.step(inputs({0: ["abc", "de"]}))[0]["history"][0]["reward"] == 5.0
        assert manager.statuses[0].rewards == (5.0,)
        assert [entry["env_id"] for entry in manager.step(inputs({0: ["b"] * 6, 1: ["c"]}))] == [1]
        status, entry = manager.statuses[0], manager.get_rollout_states()[0]
        assert (status.num_actions, status.terminated, status.truncated, status.success) == (6, False, True, False)
        assert (entry["history"][1]["actions"], entry["penalty"]) == (["b"] * 4, 0.0)
        manager.reset(seed=1)  # one that ends with its last action is not truncated
        manager.step(inputs({0: ["a"] * 5 + ["please"], 1: ["please", "never heard"]}))
        ends = [(one.num_actions, one.terminated, one.truncated, one.success) for one in manager.statuses]
        assert ends == [(6, True, False, True), (1, True, False, True)]


# ---- seeds ----------------------------------------------------------------------------------------------------------


def seeds(manager: EnvStateManager, seed: int | None = None) -> list[int]:
    manager.reset(seed)
    return [status.seed for status in manager.statuses]


def test_seeds_are_equal_in_a_group_and_different_otherwise(walks: EnvStateManager) -> None:
    drawn = [seeds(walks, 0), seeds(walks), seeds(walks), seeds(walks, 1)]
    assert all(one[0] == one[1] != one[2] == one[3] for one in drawn)
    assert len({number for one in drawn for number in one}) == 8
    assert [seeds(walks, 0), seeds(walks)] == drawn[:2]


def test_the_seed_of_the_configuration_is_where_training_begins_and_without_any_runs_differ() -> None:
    config = configured({"Walk": 2}, use_multiprocessing=False)
    with (
        EnvStateManager({**config, "seed": {"train": 9}}) as one,
        EnvStateManager({**config, "seed": {"train": 9}}) as other,
        EnvStateManager(config) as free,
        EnvStateManager(config) as freer,
    ):
        drawn = [seeds(one), seeds(one)]
        assert drawn == [seeds(other), seeds(other)]
        assert drawn[0] == seeds(one, 9) != drawn[1]
        assert seeds(free) != seeds(freer)


def test_validation_begins_with_the_same_seeds_each_time_and_shares_none_with_training() -> None:
    config = configured({"Walk": 2}, use_multiprocessing=False)
    with EnvStateManager(config, "val") as validation, EnvStateManager({**config, "seed": 123}) as training:
        drawn = seeds(validation)
        assert seeds(validation) == drawn != seeds(validation, 5)
        assert not set(drawn) & set(seeds(training))
        assert validation.reset()[0]["history"][0]["state"].startswith("val")
        assert seeds(validation) == drawn


def test_global_generators_are_left_alone() -> None:
    before = random.getstate(), str(np.random.get_state())
    with begun({"Dice": 1}) as manager:
        one, other = play(manager, ["throw"] * 3, seed=1)
    assert (random.getstate(), str(np.random.get_state())) == before
    assert [item["state"] for item in one["history"]] == [item["state"] for item in other["history"]]


# ---- figures and pictures -------------------------------------------------------------------------------------------


def test_metrics_of_episodes_groups_and_tags() -> None:
    with begun({"Talk": 1, "Walk": 1}) as manager:
        manager.step(inputs({0: ["ab", "please"], 1: ["abcd"], 2: ["right", "nonsense"], 3: ["nonsense"]}))
        manager.step(inputs({1: [], 3: ["right"]}))
        first, second, third, fourth = [entry["metrics"] for entry in manager.get_rollout_states()]
        raw = {"Talk/raw_reward": 0.0, "Talk/episodic_return": 0.0, "Talk/pass@2": 1.0}
        assert first == {"Talk/length": 6.0, "Talk/success": 1.0, "Talk/num_actions": 2.0, **raw}
        told = {"Talk/length": 2.0, "Talk/success": 0.0, "Talk/num_actions": 1.0}
        assert second == {**told, **raw, "Talk/manager_invalid_action": 0.5}
        assert (third["Walk/action_is_valid"], fourth["Walk/action_is_valid"]) == (1.0, 0.5)
        assert third["Walk/far"] == third["Walk/place"] == fourth["Walk/far"]
        assert "Walk/who" not in third
        means = manager.metrics()
        assert (means["Talk/success"], means["Talk/pass@2"], means["Talk/length"]) == (0.5, 1.0, 4.0)
        assert (means["Walk/failed"], means["Walk/pass@2"]) == (0.0, 0.0)


def test_rendering() -> None:
    with begun({"Walk": 1, "Lake": 1}, max_workers=1) as manager:
        states = [entry["history"][0]["state"] for entry in manager.get_rollout_states()]
        assert manager.render() == states
        with pytest.raises(ValueError, match=r"kwargs: \{render_mode: rgb_array\}"):
            manager.render("rgb_array")
        assert (manager.render("rgb_array", env_ids=[]), manager.render(env_ids=[3, 0])) == ([], [states[3], states[0]])
        with pytest.raises(BadTurn, match="asked for env 4, and there are envs 0 to 3"):
            manager.render(env_ids=[4])
        assert len(manager.step(inputs({env: ["down", "right"] for env in range(4)}))) == 4


class Secretive(Walk):  # cannot tell how it is doing before it has jumped, nor be shown
    def metrics(self) -> dict[str, float]:
        if self.place < 3:
            raise ValueError("not yet")
        return {}


class Invisible(Walk):
    def render(self, mode: str = "text") -> str:
        os._exit(3)


def configured_with(kind: type[Walk], **said: Any) -> dict[str, Any]:
    """A group of walks, and one of these."""
    register("special", kind, WalkConfig)
    config = configured({"Walk": 1, "Talk": 1}, **said)
    config["custom_envs"]["Talk"] = {"env_type": "special", "max_actions_per_traj": 2}
    return config


@pytest.mark.parametrize("use_multiprocessing", [True, False])
def test_an_env_that_cannot_tell_its_metrics_hides_no_others(use_multiprocessing: bool) -> None:
    config = configured_with(Secretive, max_workers=1, use_multiprocessing=use_multiprocessing)
    with EnvStateManager(config) as manager:
        manager.reset(seed=1)
        manager.step(inputs({env: ["right"] for env in range(2)}))
        states, means = manager.get_rollout_states(), manager.metrics()
        assert ["not yet" in str(entry.get("failure")) for entry in states] == [False, False, True, True]
        assert (states[2]["metrics"], states[0]["metrics"]["Walk/num_actions"]) == ({"Talk/failed": 1.0}, 1.0)
        assert (means["Talk/failed"], means["Walk/failed"]) == (1.0, 0.0)
        assert not any("failure" in entry for entry in manager.step(inputs({env: ["right"] for env in range(4)})))


def test_an_episode_that_is_over_stays_as_it_was_whatever_showing_it_does() -> None:
    with EnvStateManager(configured_with(Invisible, max_workers=1)) as manager:
        manager.reset(seed=1)
        manager.step(inputs({2: ["left", "left"]}))
        before = manager.statuses
        with pytest.raises(WorkerDied):
            manager.render(env_ids=[2])
        assert manager.statuses == before
        assert before[2].done


# ---- where ----------------------------------------------------------------------------------------------------------


def test_multiprocessing_can_be_switched_at_any_time() -> None:
    told = []
    for switches in ((), (False,), (False, True)):
        with begun({"Walk": 1}, max_workers=1) as manager:
            for switch, action in zip_longest(switches, ("jump", "left", "left")):
                manager.use_multiprocessing = manager.use_multiprocessing if switch is None else switch
                manager.step(inputs({0: [action], 1: [action]}))
            assert manager.stats().num_workers == (0 if switches == (False,) else 1)
            assert manager.stats().in_caller == (("Walk",) if switches == (False,) else ())
            told.append(manager.get_rollout_states())
            with pytest.raises(TypeError, match="neither True nor False"):
                manager.use_multiprocessing = "no"  # type: ignore[assignment]  # a mistake
    for others in told[1:]:
        assert_same_batch(others, told[0])


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
    """A worker less, the same entries, and a worker that is killed costs no env anything."""
    told = []
    for num_workers, processes in ((0, 0), (1, 1), (2, 1), (5, 4)):
        with EnvStateManager(rooms(max_workers=num_workers or 1, use_multiprocessing=bool(num_workers))) as manager:
            entries = [manager.reset(seed=1)]
            for actions in (["Up", "Left", "Up"], ["Right", "sing"], ["Down", "Down", "Right", "Left"]):
                entries.append(manager.step(inputs({entry["env_id"]: actions for entry in entries[-1]})))
                if num_workers and len(entries) == 2:
                    kill_all(manager)
            assert manager.stats().num_workers == processes
            told.append([*entries, manager.get_rollout_states(), manager.statuses])
    for others in told[1:]:
        assert_same_batch(others, told[0])


def test_beside_others_or_waiting_the_caller_steps_no_share() -> None:
    config = rooms(max_workers=2)
    config["custom_envs"]["Other"] = {"env_type": "walk"}
    config["es_manager"]["train"]["env_configs"] = {"tags": ["Walk", "Other"], "n_groups": [1, 1]}
    with EnvStateManager(config) as manager:
        manager.reset(seed=1)
        assert (manager.stats().num_workers, manager.stats().in_caller) == (2, ())
    config = rooms()
    config["custom_envs"]["Walk"] |= {"where": "both", "parallel_friendly": True}
    with pytest.raises(BadSettings, match=r"`custom_envs\.Walk` is parallel_friendly and lives in both places"):
        EnvStateManager(config)


def test_a_reset_keeps_the_workers() -> None:
    with EnvStateManager(configured({"Forgetful": 2}, max_workers=2)) as manager:
        pids = [[entry["history"][0]["state"].split()[0] for entry in manager.reset()] for _ in range(3)]
        assert pids[0] == pids[1] == pids[2]
        assert len(set(pids[0])) == 2


class Echo:  # says what it hears
    def __init__(self, config: Any) -> None:
        self.config = config

    def reset(self, seed: int, mode: str) -> str:
        return "say"

    def step(self, action: str) -> Any:
        return action, 1.0, False, False, {"n": 1}


class Meeting(Echo):  # a step that is over only when three others are at the same point: all four are stepped at once
    barrier: threading.Barrier | None = None

    def step(self, action: str) -> Any:
        Meeting.barrier = Meeting.barrier or threading.Barrier(4)
        Meeting.barrier.wait(30.0)
        return super().step(action)


class Modules(Echo):  # tells what its process has loaded
    def reset(self, seed: int, mode: str) -> str:
        return " ".join(sys.modules)


def of_echo(kind: type, **block: Any) -> EnvStateManager:
    register("echo", kind)
    return EnvStateManager(of_block({"env_type": "echo", "max_actions_per_traj": 1000, **block}, 4, max_workers=1))


def test_payload_is_flat_over_an_episode() -> None:
    with of_echo(Echo) as manager:
        manager.reset(seed=1)
        sizes = [manager.stats().num_bytes]
        for _ in range(30):
            manager.step(inputs({env: ["hello"] for env in range(4)}))
            sizes.append(manager.stats().num_bytes)
        grown = np.diff(sizes)[1:]
        assert 0 <= max(grown) - min(grown) <= 64  # numbers grow longer by a byte or two


def test_environments_that_wait_are_stepped_at_once() -> None:
    with of_echo(Meeting, parallel_friendly=True) as manager:
        manager.reset(seed=1)
        entries = manager.step(inputs({env: ["now"] for env in range(4)}))
        assert [entry["history"][-1]["state"] for entry in entries] == ["now"] * 4


def test_a_worker_brings_in_no_heavy_library() -> None:
    with of_echo(Modules, parallel_friendly=True) as manager:
        loaded = set(manager.reset()[0]["history"][0]["state"].split())
    assert "parallel_envs.groups.env_host" in loaded
    assert not loaded & {"torch", "pydantic", "typer", "rich", "pettingzoo"}


# ---- its life -------------------------------------------------------------------------------------------------------


def test_where_no_worker_starts_all_live_in_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> Any:
        raise WorkerStartError("there is no room")

    monkeypatch.setattr(env_workers, "open_pool", refuse)
    expected = play(EnvStateManager(configured({"Walk": 1}, use_multiprocessing=False)), ["jump", "left"], 1)
    with EnvStateManager(configured({"Walk": 1})) as manager:
        with pytest.warns(RuntimeWarning, match="there is no room.*in the caller instead") as caught:
            manager.reset(seed=1)
        assert caught[0].filename == __file__
        assert_same_batch(play(manager, ["jump", "left"], 1), expected)


def test_what_cannot_travel_is_named() -> None:
    lock = threading.Lock()
    register("locked", lambda config: lock)
    told = r"\['Walk'\]\.factory"
    with EnvStateManager(of_block({"env_type": "locked"})) as manager, pytest.raises(Unpicklable, match=told):
        manager.reset()


def test_a_ctrl_c_waits_until_a_turn_has_been_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    with begun({"Walk": 1}, max_workers=1) as manager:

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


class Shy:
    def __deepcopy__(self, memo: Any) -> Any:
        raise ValueError("no copies of this")


class Hiding(Walk):  # shows something that cannot be copied, if it jumps
    def step(self, action: int) -> Any:
        state, *rest = super().step(action)
        return (Shy() if action == 7 else state, *rest)


def test_a_state_that_cannot_be_kept_is_the_failure_of_one_environment() -> None:
    register("walk", Hiding, WalkConfig)
    with begun({"Walk": 2}, max_workers=1) as manager:
        entries = manager.step(inputs({0: ["right"], 1: ["jump"], 2: ["right"]}))
        assert [entry["env_id"] for entry in entries if "failure" in entry] == [1]
        assert "no copies of this" in str(entries[1]["failure"])
        assert [status.num_actions for status in manager.statuses] == [1, 0, 1, 0]
        entries = manager.step(inputs({env: ["left"] for env in (0, 2, 3)}))
        assert [len(entry["history"][-1]["state"].split()) for entry in entries] == [3, 3, 2]


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, lambda manager: pickle.loads(pickle.dumps(manager))])
def test_a_copy_goes_on_from_where_the_episodes_stand(copied: Callable[[EnvStateManager], EnvStateManager]) -> None:
    with begun({"Walk": 1, "Dice": 1}, max_workers=1) as manager:
        manager.step(inputs({0: ["jump"], 1: ["left"], 2: ["throw"]}))
        turn = inputs({0: ["jump"], 3: ["throw"]})
        with copied(manager) as other:
            there = other.step(turn)
            began = other.reset(seed=2)
        assert_same_batch(manager.step(turn), there)
        assert [status.num_actions for status in manager.statuses] == [2, 1, 1, 1]
        assert_same_batch(manager.reset(seed=2), began)


def test_closing() -> None:
    EnvStateManager(configured({"Walk": 1}, max_workers=1)).close()
    manager, forgotten = (EnvStateManager(configured({"Walk": 1}, max_workers=1)) for _ in range(2))
    manager.reset(seed=1)
    assert repr(manager) == "EnvStateManager(train, 1 groups of 2, 2 unfinished)"
    for _ in range(2):
        manager.close()
    assert "closed" in repr(manager)
    for call in (manager.reset, lambda: manager.step([]), manager.render, manager.get_rollout_states):
        with pytest.raises(ClosedError, match="Make another one"):
            call()
    forgotten.reset(seed=1)
    del forgotten
    gc.collect()  # the check around every test says whether a process or a descriptor is left
