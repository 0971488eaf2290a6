"""Pages of runs and evaluations: one file, with curves over seeds, times, workers, settings, cross-play and videos."""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from parallel_envs import ParallelEnvManager
from parallel_envs.cli import app, report_timeline
from parallel_envs.cli.report import EvaluationRecord, RunRecord, curve, mean_and_half_width, page_of
from parallel_envs.cli.report_page import Section, html_page, table
from parallel_envs.cli.report_timeline import Span, events_in, spans_of, timeline
from parallel_envs.evaluation import EpisodeRecord, EvaluationResult, Failure, evaluate
from parallel_envs.learners.outcomes import AgentOutcome, RunOutcome
from tests.cli.chromium import MISSING, PROGRAM, Chromium

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

RUN = [
    "env=CartPole-v1",
    "backend=serial",
    "num_envs=2",
    "total_steps=400",
    "algorithm.rollout_length=32",
    "algorithm.minibatch_size=64",
]


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs that differ in their seeds, one with another learning rate, and an evaluation with a failure."""
    folder = tmp_path_factory.mktemp("report")
    for name, *words in (("one", "seed=1"), ("two", "seed=2"), ("other", "seed=1", "algorithm.learning_rate=0.01")):
        done = run("train", *RUN, *words, f"folder={folder / name}")
        assert done.exit_code == 0, done.output
    policies = {"left": lambda seen: 0, "broken": lambda seen: 0 if abs(seen[3]) < 0.5 else 1 // 0}
    evaluate("CartPole-v1", policies, episodes=3, jobs=0, versus=False).to_json(folder / "result.json")
    done = run(
        "report", *(folder / name for name in ("one", "two", "other", "result.json")), "--output", folder / "a.html"
    )
    assert done.exit_code == 0, done.output
    return folder


@pytest.fixture(scope="module")
def page(folder: Path) -> str:
    return (folder / "a.html").read_text(encoding="utf-8")


def test_the_page_is_one_file(page: str) -> None:
    assert re.findall(r'(?:src|href)="(?!#|data:)([^"]*)"', page) == []
    assert "url(http" not in page
    assert re.findall(r"<h2>(.*?)</h2>", page) == [
        *("Runs", "Learning curves", "Where time went", "Settings that differ"),
        *("Evaluation: result.json", "Failures: result.json"),
    ]


def test_runs_that_differ_in_the_seed_are_one_curve(page: str) -> None:
    assert "one and 1 more seed (mean, 95 %)" in page
    assert re.search(r">\s*other\s*<", page)


def test_every_picture_has_its_content_as_text(page: str) -> None:
    pictures = re.findall(r"<svg [^>]*>", page)
    assert len(pictures) == 3
    assert all('role="img"' in picture and 'aria-label="' in picture for picture in pictures)


def test_tables_have_the_outcomes_the_differences_and_the_failures(page: str, folder: Path) -> None:
    outcome = json.loads((folder / "one/outcome.json").read_text())
    assert f'data-value="{outcome["agents"]["agent_0"]["last_return"]}"' in page
    differences = page.partition("<h2>Settings that differ</h2>")[2].partition("</section>")[0]
    assert re.findall(r'<th scope="row"[^>]*>([^<]+)', differences) == ["algorithm.learning_rate", "seed"]
    assert page.partition("<h2>Failures")[2].count("ZeroDivisionError") >= 3


def test_a_curve_over_seeds_is_the_mean_with_students_interval() -> None:
    mean, half = mean_and_half_width([1.0, 2.0, 6.0])
    assert mean == 3.0
    assert half == pytest.approx(4.303 * math.sqrt(7.0 / 3.0), rel=1e-3)
    assert math.isnan(mean_and_half_width([5.0])[1])
    rows = curve([[(10, 1.0), (20, 3.0)], [(10, 3.0), (30, 5.0)]], num_rows=2)
    assert [(steps, mean) for steps, mean, _ in rows] == [(10, 2.0), (20, 3.0)]


def test_without_a_page_each_outcome_is_told(folder: Path) -> None:
    done = run("report", folder / "one", folder / "two")
    assert done.exit_code == 0
    assert done.output.count("Ended: ") == 2


def test_a_run_that_is_given_twice_is_no_second_seed(folder: Path, tmp_path: Path) -> None:
    for name in ("$^$", "b"):
        shutil.copytree(folder / "one", tmp_path / name)
    shutil.copy(folder / "result.json", tmp_path / "result.json")
    results = [folder / "result.json", tmp_path / "result.json"]
    done = run("report", tmp_path / "$^$", tmp_path / "b", tmp_path / "b", *results, "--output", tmp_path / "a.html")
    assert done.exit_code == 0, done.output
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert "more seed" not in page
    assert page.count("<h2>Evaluation: ") == 2


@pytest.mark.parametrize("name", ["nothing", "one/run.json"])
def test_what_is_no_run_and_no_evaluation_is_refused(folder: Path, name: str) -> None:
    done = run("report", folder / name, "--output", folder / "b.html")
    assert done.exit_code == 2
    assert not (folder / "b.html").exists()


def test_a_run_with_other_activities_and_one_without_metrics_have_a_page() -> None:
    lines = [{"update": 1, "steps": 5, "seconds": {"collect": 1.0, "learn": 2.0}, "agents": {"meta": {"return": 1.0}}}]
    outcome = outcome_of_nothing()
    assert RunRecord("damaged", {}, outcome, [{"agents": [1]}, {"steps": 1, "agents": {"a": None}}]).returns() == {}
    odd = [math.nan, math.inf, 10**400, 1e308, "3", None]
    told = [{"steps": 1, "seconds": {"collect": one}, "agents": {"a": {"return": one}}} for one in odd]
    assert RunRecord("odd", {}, outcome, told).returns() == {}
    assert "Learning curves" not in page_of([RunRecord("odd", {}, outcome, told[:4])], [])
    runs = [RunRecord("meta", {"env": {"env_name": "x"}}, outcome, lines), RunRecord("new", {}, outcome, [])]
    page = page_of(runs, [])
    assert "meta: collect 1 s, learn 2 s" in page
    assert '<td data-value="x">x</td>' in page
    assert page.count('<td data-value="running, or killed">') == 2
    assert "<h2>Where time went</h2>" not in page_of([RunRecord("new", {}, outcome, [])], [])


def outcome_of_nothing(folder: Path = Path("x"), **agents: AgentOutcome) -> RunOutcome:
    return RunOutcome(
        folder=folder, ended="unknown", steps=0, total_steps=None, steps_here=None, seconds=None, agents=agents
    )


# ---- workers over time ----------------------------------------------------------------------------------------------


def events(count: int) -> list[dict[str, object]]:
    """A step of 3 ms in each of two workers, every 4 ms, and the names of both threads."""
    named: list[dict[str, object]] = [
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": tid, "args": {"name": f"worker {tid}"}} for tid in (1, 0)
    ]
    steps: list[dict[str, object]] = [
        {"ph": "X", "name": "step", "pid": 1, "tid": tid, "ts": 4000 * number, "dur": 3000}
        for number in range(count)
        for tid in (0, 1)
    ]
    return [*named, *steps, {"ph": "X", "name": "no length", "ts": 1, "dur": math.nan}, {"ph": "B", "name": "other"}]


def test_a_trace_is_read_by_thread_also_if_it_is_not_finished(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    file.write_text(text := json.dumps({"traceEvents": events(3)}))
    found = spans_of(events_in(file))
    assert list(found) == ["worker 1", "worker 0"]  # as the file names them
    assert found["worker 0"] == [Span("step", one / 1000, (one + 3) / 1000) for one in (0, 4, 8)]
    for end in range(0, len(text), 11):
        file.write_text(text[:end])
        assert sum(map(len, spans_of(events_in(file)).values())) <= 6
    file.write_text(json.dumps(events(3))[:-40])
    assert spans_of(events_in(file)) == found
    for nonsense in ("", "[]", "3", '{"traceEvents": 3}', "{" * 5000, '{"a":' * 5000, '[{"ph": "X", "ts": 1e999}]'):
        file.write_text(nonsense)
        assert list(timeline(tmp_path, "run", 0)) == []


def test_the_statistics_of_workers_stand_below_their_timeline(tmp_path: Path) -> None:
    with ParallelEnvManager("CartPole-v1", num_envs=3, num_workers=2, backend="serial") as envs:
        envs.reset(seed=0)
        with envs.trace(tmp_path / "trace.json"):
            for _ in range(5):
                envs.step([0, 0, 0])
        steps = [row["steps"] for row in envs.stats()]
    [(_, content)] = timeline(tmp_path, "run", 0)
    assert "Workers since they were started: run" in content
    rows = re.findall(
        r'<th scope="row" data-value="(\d+)">.*?</th><td data-value="([^"]*)">.*?data-value="(\d+)"', content
    )
    assert rows == [("0", "0, 1", str(steps[0])), ("1", "2", str(steps[1]))]


def test_of_a_long_trace_the_last_spans_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "trace.json"
    file.write_text(json.dumps({"traceEvents": events(4000)}))
    [(head, content)] = timeline(tmp_path, "run", 0)
    assert head == "Workers over time: run"
    assert "in the last 2 s" in content
    assert "worker 0: step 1.5 s" in content
    assert 1000 <= content.count("<path") < 1100
    monkeypatch.setattr(report_timeline, "_MOST_BYTES", 100_000)
    monkeypatch.setattr(report_timeline, "_HEAD_BYTES", 1_000)
    read = spans_of(events_in(file))  # names from the beginning, and the last spans
    assert list(read) == ["worker 1", "worker 0"]
    assert 500 < len(read["worker 0"]) < 2000
    assert read["worker 0"][-1].end == pytest.approx(15.999)


# ---- cross-play and videos ------------------------------------------------------------------------------------------


def met(*, options: dict[str, str] | None = None) -> EvaluationResult:
    """Four episodes in which `a` and `b` share two agents; `a` gets 3 and `b` 1."""
    episodes = [
        EpisodeRecord(mission="m", episode=n, seed=n, assignment={"x": "a", "y": "b"}, returns={"x": 3.0, "y": 1.0})
        for n in range(4)
    ]
    return EvaluationResult(episodes=tuple(episodes), options=options or {})


def test_policies_that_met_have_a_cross_play_matrix_and_ratings() -> None:
    page = page_of([], [EvaluationRecord("r.json", met(), Path())])
    section = page.partition("<h2>Cross-play: r.json</h2>")[2].partition("</section>")[0]
    assert "a beside b: 3; b beside a: 1" in section
    heads = re.findall(r'<button type="button">([^<]+)', section)
    assert heads == ["policy", "beside a", "beside b", "pairings", "Elo", "Elo, low", "Elo, high"]
    first = re.search(r"<tbody><tr>(.*?)</tr>", section)
    assert first is not None
    values = re.findall(r'data-value="([^"]*)"', first[1])
    assert values[:4] == ["a", "", "3.0", "4"]
    assert float(values[4]) > 1000
    for lost in (math.inf, math.nan):  # a file may have such returns
        odd = EpisodeRecord(
            mission="m", episode=9, seed=9, assignment={"x": "a", "y": "b"}, returns={"x": lost, "y": 1}
        )
        for episodes in ((odd,), (odd, *met().episodes)):
            assert "Cross-play" in page_of([], [EvaluationRecord("r", EvaluationResult(episodes=episodes), Path())])
    alone = EvaluationResult(episodes=tuple(EpisodeRecord(mission="m", episode=n, seed=n) for n in range(2)))
    assert "Cross-play" not in page_of([], [EvaluationRecord("r.json", alone, Path())])


def test_videos_are_in_the_page_or_linked_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = met(options={"record": "best", "videos": "my films"})
    (tmp_path / "my films").mkdir()
    film = tmp_path / "my films" / "m-0003.mp4"
    film.write_bytes(b"\0\0\0\x18ftypisom" + bytes(100))
    (tmp_path / "run" / "videos").mkdir(parents=True)
    (tmp_path / "run" / "videos" / "a.gif").write_bytes(b"GIF89a")
    (tmp_path / "run" / "videos" / "b.mp4").write_bytes(b"#!/bin/sh and no film")
    runs = [RunRecord("run", {}, outcome_of_nothing(tmp_path / "run"), [])]
    written = page_of(runs, [EvaluationRecord("r", result, tmp_path)], output=tmp_path / "pages" / "r.html")
    assert '<video controls preload="metadata" src="data:video/mp4;base64,AAAAGGZ0eXBpc29t' in written
    assert "r: m, episode 3: return 2" in written
    assert '<img src="data:image/gif;base64,' in written
    assert "b.mp4 is not a video" in written
    monkeypatch.setattr(sys.modules[page_of.__module__], "_MOST_VIDEO_BYTES", 50)
    written = page_of(runs, [EvaluationRecord("r", result, tmp_path)], output=tmp_path / "pages" / "r.html")
    assert '<a href="../my%20films/m-0003.mp4">m-0003.mp4</a>' in written
    assert "too large to be in the page" in written
    assert "my films/m-0003.mp4</code>" in page_of(runs, [EvaluationRecord("r", result, tmp_path)])


# ---- at the end of training and evaluating --------------------------------------------------------------------------


def test_train_opens_a_report_where_there_is_a_display(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    opened: list[str] = []

    def take(url: str) -> bool:
        opened.append(url)
        return True

    monkeypatch.setattr("webbrowser.open", take)
    small = ["train", *RUN, "tensorboard=false"]
    for number, display in enumerate(("", ":0")):
        if display:
            monkeypatch.setenv("DISPLAY", display)
        folder = tmp_path / str(number)
        done = run(*small, f"folder={folder}", "--open")
        assert done.exit_code == 0, done.output
        written = folder / "report.html"
        assert "<h2>Runs</h2>" in written.read_text(encoding="utf-8")
        assert f"Report: {written}" in done.stderr
        assert ("no display" in done.stderr) == (not display)
        assert done.stdout.strip() == str(folder)
    assert opened == [(tmp_path / "1" / "report.html").as_uri()]
    monkeypatch.setattr("parallel_envs.extras.is_installed", lambda module: module != "matplotlib")
    done = run(*small, f"folder={tmp_path / 'none'}", "--open")
    assert done.exit_code == 2
    assert 'pip install "parallel-envs[report]"' in done.output
    assert not (tmp_path / "none").exists()


def test_a_page_that_cannot_be_written_is_told_at_once(folder: Path) -> None:
    for output, problem in ((folder / "nowhere" / "a.html", "there is no folder"), (folder, "it is a folder")):
        done = run("report", folder / "one", "--output", output)
        assert (done.exit_code, done.stdout) == (2, "")
        assert f"{output} cannot be written: {problem}" in done.stderr


def test_eval_writes_a_page_of_its_result(tmp_path: Path) -> None:
    words = ["eval", "-m", "CartPole-v1", "-p", "random", "-e", "3"]
    file, page = tmp_path / "result.json", tmp_path / "page.html"
    done = run(*words, "--output", file, "--report", page)
    assert done.exit_code == 0, done.output
    assert f"Report: {page}" in done.stderr
    assert "<h2>Evaluation: result.json</h2>" in page.read_text(encoding="utf-8")
    page.unlink()
    assert run("eval", "--resume", file, "-e", "4").exit_code == 0
    assert not page.exists()  # a results file names no page: it may be a stranger's
    assert run("eval", "--resume", file, "--report", page).exit_code == 0
    assert 'data-value="4"' in page.read_text(encoding="utf-8")
    done = run(*words, "--report", tmp_path / "nowhere" / "page.html")
    assert done.exit_code == 2
    assert "nowhere/page.html cannot be written: there is no folder" in done.stderr


# ---- names from files, and a real browser ---------------------------------------------------------------------------

BAD = "</script><script>window.bad = 1</script><img src=x onerror='bad = 1'>\"'&\n$x$\ud800"


def nasty(folder: Path) -> str:
    """Return a page in which every name is an attack."""
    (folder / "videos").mkdir(parents=True)
    (folder / "videos" / '<b>&".gif').write_bytes(b"GIF89a")
    trace = [{"ph": "X", "name": BAD, "pid": BAD, "tid": 1, "ts": 0, "dur": 5}]
    (folder / "trace.json").write_text(json.dumps(trace))
    runs = []
    for number in range(2):
        agent = AgentOutcome(algorithm=BAD, episodes=1, last_return=1.0, best_return=None)
        lines = [{"steps": 9 + step, "seconds": {BAD: 1.0}, "agents": {BAD: {"return": step}}} for step in range(3)]
        outcome = outcome_of_nothing(folder, **{BAD: agent, "other": agent})
        runs.append(RunRecord(f"{BAD} {number}", {"env": BAD, BAD: number, "seed": 0}, outcome, lines))
    failed = EpisodeRecord(
        mission=BAD, episode=0, seed=0, failure=Failure(kind="env", error_type=BAD, message=BAD, where=BAD)
    )
    played = EpisodeRecord(mission=BAD, episode=1, seed=1, assignment={0: BAD, 1: "b"}, returns={0: 1.0, 1: 2.0})
    result = EvaluationResult(episodes=(failed, played, played))
    return page_of(runs, [EvaluationRecord(BAD, result, folder)], remarks=[BAD])


def test_names_from_files_are_text_and_nothing_else(tmp_path: Path) -> None:
    page = nasty(tmp_path / "run")
    assert page.count("<script>") == page.count("</script>") == 1
    assert "<img src=x" not in page
    assert "<b>" not in page
    assert page.count("script&gt;window.bad") > 20


needs_chromium = pytest.mark.skipif(PROGRAM is None, reason=MISSING)


@needs_chromium
def test_in_a_browser_curves_are_drawn_and_filters_and_tables_work(folder: Path, tmp_path: Path) -> None:
    """With the mouse and with the keyboard; nothing is asked of any other place, and the console stays empty."""
    with Chromium(tmp_path) as browser:
        browser.open((folder / "a.html").as_uri())
        drawn = (
            "[...document.querySelectorAll('figure svg [data-run=\"%d\"]')].filter(one => one.getClientRects().length)"
        )
        wide = f"{drawn % 0}.some(one => one.getBoundingClientRect().width > 200)"
        assert browser.run(wide)
        assert browser.run(f"{drawn % 1}.length") > 0
        rows = "[...document.querySelectorAll('section:first-of-type tbody tr')].filter(one => one.offsetHeight)"
        assert browser.run(f"{rows}.length") == 3
        browser.run("document.querySelector('.filters input').click()")  # the curve of two seeds
        assert browser.run(f"{rows}.map(row => row.cells[0].textContent)") == ["other"]
        assert browser.run(f"{drawn % 0}.length") == 0
        assert browser.run(f"{drawn % 1}.length") > 0
        assert "1 of 2 runs are shown" in browser.run("document.getElementById('status').textContent")
        browser.run("document.querySelector('.filters input').focus()")
        browser.press(" ")
        assert browser.run(f"{rows}.length") == 3
        browser.run("document.querySelector('.filters button[data-all=\"0\"]').click()")
        assert browser.run(f"{rows}.length") == 0
        browser.run("document.querySelector('.filters button[data-all=\"1\"]').click()")
        assert browser.run(f"{rows}.length") == 3

        head = "document.querySelector('section:first-of-type thead th:nth-child(3)')"
        browser.run(f"{head}.previousElementSibling.firstElementChild.focus()")
        browser.press("Tab")
        browser.press("Enter")
        values = f"{rows}.map(row => Number(row.cells[2].dataset.value))"
        ascending = browser.run(values)
        assert ascending == sorted(ascending)
        assert browser.run(f"{head}.getAttribute('aria-sort')") == "ascending"
        browser.press("Enter")
        assert browser.run(values) == ascending[::-1]
        assert browser.run("document.querySelectorAll('th[aria-sort$=ending]').length") == 1

        browser.run("document.querySelector('nav a[href=\"#s1\"]').click()")
        below = "document.querySelector('#s1 h2').getBoundingClientRect().top"
        browser.wait_for(f"{below} < innerHeight")
        assert browser.run(f"{below} >= document.querySelector('.filters').offsetHeight")

        back = "getComputedStyle(document.querySelector('.filters')).backgroundColor"
        browser.look(width=400, dark=False)
        light = browser.run(back)
        assert browser.run("document.documentElement.scrollWidth <= innerWidth")
        browser.look(width=400, dark=True)
        assert browser.run(back) != light
        browser.look(width=800, media="print")
        assert browser.run("getComputedStyle(document.querySelector('.filters')).display") == "none"
        assert browser.pdf().startswith(b"%PDF")
        assert browser.problems == []
        assert {url.partition(":")[0] for url in browser.requests} == {"file"}
        assert len(browser.requests) == 1


@needs_chromium
def test_in_a_browser_no_name_runs_and_unknown_values_are_sorted_to_the_end(tmp_path: Path) -> None:
    (tmp_path / "bad.html").write_text(nasty(tmp_path / "run"), encoding="utf-8")
    rows: list[list[object]] = [["a", 10.0], ["b", None], ["c", 9], ["d", "text"], ["e", -1.5], ["f", math.nan]]
    (tmp_path / "rows.html").write_text(html_page("t", [Section("s", table("c", ["x", "y"], rows))]))
    with Chromium(tmp_path) as browser:
        browser.open((tmp_path / "bad.html").as_uri())
        assert browser.run("window.bad === undefined")
        assert browser.run("document.querySelector('h1').textContent").startswith("</script><script>window.bad = 1")
        assert [one for one in browser.problems if "GIF" not in one] == []
        assert {url.partition(":")[0] for url in browser.requests} <= {"file", "data"}
        browser.open((tmp_path / "rows.html").as_uri())
        order = "[...document.querySelectorAll('tbody tr')].map(row => row.cells[0].textContent).join('')"
        browser.run("document.querySelectorAll('thead button')[1].click()")
        assert browser.run(order) == "ecadbf"
        browser.run("document.querySelectorAll('thead button')[1].click()")
        assert browser.run(order) == "acedbf"
