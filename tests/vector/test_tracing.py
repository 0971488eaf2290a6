"""A trace says what each worker did when, changes nothing of what is computed, and is bounded."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from concurrent import futures
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from parallel_envs import MultiAgentEnvManager, ParallelEnvManager, WorkerDied
from parallel_envs.errors import ConcurrentCall, EnvError
from parallel_envs.testing import Fault, FaultyEnv, InfoKind, Moment, ScriptedEnv, assert_same_batch
from parallel_envs.testing.scripted_agents import ScriptedAgentsEnv, Stay
from parallel_envs.trace import SpanBuffer, Trace, instant, open_traces, record, span
from parallel_envs.vector import tracing
from tests.vector.conftest import Make, opened
from tests.vector.small_envs import CountingEnv, FailingEnv

LENGTHS = [partial(CountingEnv, length) for length in (2, 3, 4, 5)]
ZEROS = np.zeros(4, int)

Event = dict[str, Any]


class Timeline:
    """A trace file: its events by row. Made only if what holds for every file holds for this one."""

    def __init__(self, path: Path) -> None:
        content = json.loads(path.read_text(), parse_constant=pytest.fail)  # NaN, which is no JSON
        assert content.keys() == {"traceEvents", "displayTimeUnit", "metadata"}
        assert content["displayTimeUnit"] == "ms"
        events: list[Event] = content["traceEvents"]
        names = {one["tid"]: one["args"]["name"] for one in events if one["name"] == "thread_name"}
        assert {one["pid"] for one in events} == {os.getpid()}
        self.metadata: dict[str, Any] = content["metadata"]
        self.rows: dict[str, list[Event]] = {name: [] for name in names.values()}
        self.instants: list[tuple[str, Event]] = []
        for one in events:
            assert one["ph"] in "MXi"
            assert one["ph"] == "M" or one["ts"] >= 0
            if one["ph"] == "X":
                assert one["dur"] >= 0
                self.rows[names[one["tid"]]].append(one)
            elif one["ph"] == "i":
                self.instants.append((names[one["tid"]], one))
        for row in self.rows.values():
            check_nesting(row)

    @property
    def workers(self) -> dict[str, list[Event]]:
        return {name: events for name, events in self.rows.items() if name.startswith("worker ")}

    def of_workers(self, name: str) -> list[Event]:
        return [one for events in self.workers.values() for one in events if one["name"] == name]

    def names(self, row: str) -> Counter[str]:
        return Counter(one["name"] for one in self.rows[row])


def nanoseconds(event: Event) -> tuple[int, int]:
    begin = round(event["ts"] * 1000)
    return begin, begin + round(event["dur"] * 1000)


def check_nesting(events: list[Event]) -> None:
    """An event lies inside the one before it, or begins where that has ended: else a viewer draws it wrongly."""
    ends: list[int] = []
    for event in events:
        begin, end = nanoseconds(event)
        while ends and ends[-1] <= begin:
            ends.pop()
        assert not ends or end <= ends[-1], event
        ends.append(end)


def make_steps(envs: ParallelEnvManager, count: int) -> None:
    """Make steps of two envs, from a reset on."""
    envs.reset(seed=1)
    for _ in range(count):
        envs.step([0, 0])


def steps_of(envs: ParallelEnvManager) -> int:
    return sum(row["steps"] for row in envs.stats())


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_each_step_and_reset_of_each_env_is_in_its_workers_row(make: Make, tmp_path: Path, mode: str) -> None:
    path = tmp_path / "trace.json"
    envs, plain = (make(LENGTHS, num_workers=2, autoreset_mode=mode) for _ in range(2))
    with envs.trace(path):
        assert_same_batch(envs.reset(seed=3), plain.reset(seed=3))
        for _ in range(9):
            assert_same_batch(envs.step(ZEROS), plain.step(ZEROS))
        envs.step_async(ZEROS)
        envs.step_wait()
        envs.send(ZEROS[:3], [3, 0, 1])
        assert sorted(envs.recv(3)[0]) == [0, 1, 3]
        assert envs.call("add", 1, env_ids=[2])[0] > 0
        num_steps, num_episodes = steps_of(envs), sum(episode + 1 for episode in envs.get_attr("episode"))
    timeline = Timeline(path)
    assert list(timeline.rows) == ["caller", "worker 0 (env 0-1)", "worker 1 (env 2-3)"]
    assert len(timeline.of_workers("step")) == num_steps
    assert len(timeline.of_workers("reset")) == num_episodes
    assert len(timeline.of_workers("call")) == 1 + 4
    for number, events in enumerate(timeline.workers.values()):
        assert {one["args"]["env"] for one in events} == {2 * number, 2 * number + 1}
        for one, after in pairwise(events):
            assert nanoseconds(one)[1] <= nanoseconds(after)[0]
    caller = timeline.names("caller")
    assert (caller["reset"], caller["step"], caller["step_wait"], caller["recv"]) == (1, 9, 1, 1)
    asked = {one["args"]["request"] for one in timeline.rows["caller"] if one["name"] == "step"}
    assert len(asked) == 9
    assert asked <= {one["args"]["request"] for one in timeline.of_workers("step")}
    assert timeline.metadata["dropped"] == {}
    assert not vars(envs).keys() & {"step", "reset", "send", "recv"}


@pytest.mark.parametrize("context", ["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.slow)])
def test_a_worker_that_takes_the_place_of_another_goes_on_in_its_row(tmp_path: Path, context: Any) -> None:
    once, path = tmp_path / "broken", tmp_path / "trace.json"
    fns: list[Any] = [ScriptedEnv, partial(FaultyEnv, Fault.SIGKILL, Moment.STEP, at=4, once=once)]
    with ParallelEnvManager(fns, num_workers=2, context=context, on_failure="restart") as envs:
        with envs.trace(path):
            make_steps(envs, 8)
            num_steps = steps_of(envs)
        timeline = Timeline(path)
    (row, restart), row_of_dead = *timeline.instants, "worker 1 (env 1)"
    assert (row, restart["name"], restart["args"]["env"]) == (row_of_dead, "restart", 1)
    assert "killed by signal 9" in restart["args"]["reason"]
    assert timeline.names("caller")["restart"] == 1
    steps = [one for one in timeline.rows[row_of_dead] if one["name"] == "step"]
    before = [one for one in steps if one["ts"] < restart["ts"]]
    assert len(before) == 3
    assert len(timeline.of_workers("step")) == num_steps  # without the one in which it died, which was never over
    assert len(steps) > 3


def test_a_file_is_written_though_a_worker_has_died_and_the_block_has_raised(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    fns: list[Any] = [ScriptedEnv, partial(FaultyEnv, Fault.SIGKILL, Moment.STEP, at=3, episode_lengths=(9,))]
    with ParallelEnvManager(fns) as envs:
        with pytest.raises(WorkerDied), envs.trace(path):
            make_steps(envs, 8)
        assert Timeline(path).names("worker 1 (env 1)") == {"reset": 1, "step": 2}
        envs.restart(1)
        with envs.trace(path):
            envs.reset(seed=1)
        assert Timeline(path).names("worker 1 (env 1)") == {"reset": 1}


def test_a_step_that_failed_is_called_so(make: Make, tmp_path: Path) -> None:
    envs = opened(make, [partial(FailingEnv, (2,)), FailingEnv], num_workers=1)
    with pytest.raises(EnvError), envs.trace(tmp_path / "trace.json"):
        make_steps(envs, 2)
    expected = {"reset": 2, "step": 3, "failed step": 1}
    assert Timeline(tmp_path / "trace.json").names("worker 0 (env 0-1)") == expected


def test_values_that_travel_by_pipe_are_the_same_in_a_trace(make: Make, tmp_path: Path) -> None:
    loose = spaces.Sequence(spaces.Discrete(3))
    fns = [partial(ScriptedEnv, loose, loose, infos=(InfoKind.NESTED, InfoKind.FLICKERING)) for _ in range(3)]
    envs, plain = (make(fns, num_workers=1) for _ in range(2))
    actions = tuple((env, 1) for env in range(3))
    with envs.trace(tmp_path / "trace.json"):
        assert_same_batch(envs.reset(seed=3), plain.reset(seed=3))
        for _ in range(4):
            assert_same_batch(envs.step(actions), plain.step(actions))
        num_steps = steps_of(envs)
    assert len(Timeline(tmp_path / "trace.json").of_workers("step")) == num_steps


def test_a_buffer_bounds_what_is_kept_and_the_file_says_what_is_missing(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "_MOST_EVENTS", 20)
    monkeypatch.setattr(tracing, "_LEAST_EVENTS", 10)
    envs = opened(make, [partial(CountingEnv, 1000)] * 2, num_workers=2)
    with envs.trace(tmp_path / "trace.json"):
        for _ in range(50):
            envs.step([0, 0])
    timeline = Timeline(tmp_path / "trace.json")
    assert timeline.metadata["dropped"] == {"worker 0 (env 0)": 41, "worker 1 (env 1)": 41}
    for events in timeline.workers.values():  # the place behind the newest may be half written
        assert [one["name"] for one in events] == ["step"] * 9
    asked = [one["args"]["request"] for one in timeline.rows["caller"] if one["name"] == "step"]
    assert [one["args"]["request"] for one in timeline.rows["worker 1 (env 1)"]] == asked[-9:]


def test_a_buffer_that_is_made_anew_goes_on_behind_the_last_event() -> None:
    class Block:
        buffer = bytearray(64 + SpanBuffer.num_bytes(4))

    def read() -> tuple[list[Any], int]:
        events, count = SpanBuffer(Block, 64, 4).read()
        return events.tolist(), count

    for number in range(3):
        SpanBuffer(Block, 64, 4).writer()(number % 2, 7, 2**32 + number, 1.0 + number, 1.5 + number)
    expected = [(1.0, 1.5, 0, 7, 0), (2.0, 2.5, 1, 7, 1), (3.0, 3.5, 2, 7, 0)]
    assert read() == (expected, 3)
    SpanBuffer(Block, 64, 4).writer()(2, 1 << 20, 3, 4.0, 4.5)
    SpanBuffer(Block, 64, 4).writer()(3, 0, 4, 5.0, 5.5)
    assert read() == ([expected[2], (4.0, 4.5, 3, 1 << 20, 2), (5.0, 5.5, 4, 0, 3)], 5)


def test_wrong_traces_are_refused_and_the_manager_goes_on(make: Make, tmp_path: Path) -> None:
    envs, path = opened(make, LENGTHS, num_workers=2), tmp_path / "trace.json"
    kept = tmp_path / "kept"
    kept.write_text("the trace of yesterday")
    with envs.trace(path), pytest.raises(RuntimeError, match="inside another one"), envs.trace(kept):
        pass
    with envs._guard.lock, futures.ThreadPoolExecutor() as pool:  # another thread is inside the manager
        assert isinstance(pool.submit(envs.trace(kept).__enter__).exception(), ConcurrentCall)
    assert kept.read_text() == "the trace of yesterday"
    for wrong, text in ((tmp_path, "it is a folder"), (tmp_path / "no" / "trace.json", "there is no folder")):
        with pytest.raises(OSError, match=text), envs.trace(wrong):
            pass
    for seconds in (0, -1, "all"):
        with pytest.raises(ValueError, match="seconds="), envs.trace(path, seconds):  # type: ignore[arg-type]
            pass
    with envs.trace(path):
        envs.step(ZEROS)
        envs.close()
    assert len(Timeline(path).of_workers("step")) == 4
    with pytest.raises(Exception, match="after a call to `close"), envs.trace(path):
        pass
    assert open_traces == []


def test_two_managers_have_traces_of_their_own_at_the_same_time(make: Make, tmp_path: Path) -> None:
    first, second = (opened(make, LENGTHS[:2]) for _ in range(2))
    with first.trace(tmp_path / "first"), second.trace(tmp_path / "second"):
        first.step(ZEROS[:2])
        with span("mark", note="both"):
            second.reset()
    for name, own, other in (("first", "step", "reset"), ("second", "reset", "step")):
        timeline = Timeline(tmp_path / name)
        assert timeline.names("caller")["mark"] == 1
        assert len(timeline.of_workers(own)) == 2
        assert not timeline.of_workers(other)


def test_agents_are_traced_by_the_same_code(tmp_path: Path) -> None:
    with MultiAgentEnvManager(
        [partial(ScriptedAgentsEnv, [{"a": Stay(5)}])] * 3, num_workers=2, backend="thread"
    ) as envs:
        with envs.trace(tmp_path / "trace.json"):
            envs.reset(seed=1)
            envs.step({agent: [envs.single_action_space(agent).sample()] * 3 for agent in envs.agents_now})
        assert len(Timeline(tmp_path / "trace.json").of_workers("step")) == 3
        assert "Slowest env:" in str(envs.stats())


# ---- statistics ------------------------------------------------------------------------------------------------------


def test_statistics_are_a_list_that_is_printed_as_a_table(make: Make, tmp_path: Path) -> None:
    envs = opened(make, LENGTHS, num_workers=2)
    for _ in range(4):
        envs.step(ZEROS)
    rows = envs.stats()
    assert isinstance(rows, list)
    assert json.loads(json.dumps(rows))[1]["env_ids"] == [2, 3]
    assert rows == list(rows)
    assert repr(rows) == repr(list(rows))
    header, first, second, last = str(rows).splitlines()
    assert header.split()[:3] == ["worker", "envs", "steps"]
    assert first.split()[:3] == ["0", "0-1", f"{rows[0]['steps']}"]
    share = f"{rows[1]['step_seconds'] / rows[1]['seconds']:.1%}"
    assert second.split()[3] == share
    assert last.startswith("Slowest worker: ")
    with envs.trace(tmp_path / "trace.json"):
        envs.step(ZEROS)
    rows = envs.stats()
    means = {env: mean for row in rows for env, mean in row["env_step_seconds"].items()}
    assert str(rows).splitlines()[-1].startswith(f"Slowest env: {max(means, key=lambda env: means[env])}, ")


def test_the_slowest_env_is_known_without_a_trace_if_each_has_a_worker(make: Make) -> None:
    envs = opened(make, LENGTHS, num_workers=4)
    assert len(str(envs.stats()).splitlines()) == 5  # no step was made, so none was the slowest
    envs.step(ZEROS)
    rows = envs.stats()
    slowest = max(rows, key=lambda row: float(row["step_seconds"]))
    assert str(rows).splitlines()[-1].startswith(f"Slowest env: {slowest['worker']}, ")


# ---- events of a process ---------------------------------------------------------------------------------------------


def test_events_older_than_the_last_seconds_are_left_out(tmp_path: Path) -> None:
    trace = Trace(tmp_path / "trace.json", seconds=10.0)
    trace.began -= 100.0  # it has been open for so long
    trace.add("old", trace.began, trace.began + 89.0, None)
    trace.add("long", trace.began + 1, trace.began + 99.0, None)
    trace.add("new", trace.began + 95, trace.began + 96.0, {"answer": 42})
    trace.write()
    timeline = Timeline(tmp_path / "trace.json")
    assert [one["name"] for one in timeline.rows["caller"]] == ["long", "new"]
    assert timeline.rows["caller"][1]["args"] == {"answer": 42}
    assert timeline.metadata["dropped"] == {"caller": 1}
    assert timeline.metadata["seconds"] == 10.0


def test_marks_cost_nothing_and_are_nowhere_while_no_trace_is_open(tmp_path: Path) -> None:
    assert span("a") is span("b", row="learner", number=1)
    with span("before"):
        record("before", 0.0)
        instant("before")
    with Trace(tmp_path / "trace.json"), span("outer"):
        with pytest.raises(ValueError, match="inner"), span("inner", row="learner 1"):
            raise ValueError("inner")
        instant("now", row="learner 10")
        record("past", 0.0, 1.0)  # before the trace was opened
    timeline = Timeline(tmp_path / "trace.json")
    assert {row: len(events) for row, events in timeline.rows.items()} == {"caller": 1, "learner 1": 1, "learner 10": 0}
    assert [(row, one["name"]) for row, one in timeline.instants] == [("learner 10", "now")]


def test_threads_one_after_another_have_rows_of_their_own(tmp_path: Path) -> None:
    """Linux gives the id of a thread that has ended to the next one."""
    with Trace(tmp_path / "trace.json"):
        for name in ("alpha", "beta", "gamma"):
            thread = threading.Thread(target=record, args=(f"work of {name}", time.perf_counter()), name=name)
            thread.start()
            thread.join()
    rows = Timeline(tmp_path / "trace.json").rows
    expected = {"caller": [], **{name: [f"work of {name}"] for name in ("alpha", "beta", "gamma")}}
    assert {row: [one["name"] for one in events] for row, events in rows.items()} == expected


def test_arguments_are_json_whatever_they_are(tmp_path: Path) -> None:
    path, given = tmp_path / "trace.json", {"loss": float("nan"), "all": (np.float32("inf"), np.arange(2))}
    with Trace(path):
        with span("plain", number=np.int64(3), share=np.float32(0.5), path=Path("here")):
            pass
        instant("odd", number=np.int64(3), more=given)
    timeline = Timeline(path)
    assert timeline.rows["caller"][0]["args"] == {"number": 3, "share": 0.5, "path": "here"}
    assert timeline.instants[0][1]["args"] == {"number": 3, "more": {"loss": "nan", "all": ["inf", [0, 1]]}}


def test_a_forked_process_writes_no_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with Trace(path):
        pid = os.fork()
        if not pid:
            os._exit(len(open_traces))
        assert os.waitpid(pid, 0)[1] == 0
    trace = Trace(path := tmp_path / "other.json")
    if not (pid := os.fork()):
        trace.write()
        os._exit(path.exists())
    assert os.waitpid(pid, 0)[1] == 0


def test_a_file_that_cannot_be_written_does_not_hide_the_error_of_the_block(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "folder"

    def break_off(error: Exception | None) -> None:
        folder.rmdir()
        if error is not None:
            raise error

    for error in (None, ZeroDivisionError()):
        folder.mkdir()
        with pytest.raises(type(error or OSError())), Trace(folder / "trace.json"):
            break_off(error)
    assert "cannot be written" in caplog.text
