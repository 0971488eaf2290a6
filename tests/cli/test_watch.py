"""`parallel-envs watch`: one page on the loopback interface, which follows the files and nothing else."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from parallel_envs.cli import app
from parallel_envs.cli.report import RunRecord
from parallel_envs.cli.watch import Server, Watched
from parallel_envs.evaluation import EpisodeRecord, EvaluationResult
from tests.cli.chromium import MISSING, PROGRAM, Chromium

pytest.importorskip("torch")
pytest.importorskip("matplotlib")


def add_line(run: Path, steps: int, agents: tuple[str, ...] = ("agent_0", "agent_1")) -> None:
    line = {"steps": steps, "seconds": {"collect": 1.0}, "agents": {agent: {"return": steps / 10} for agent in agents}}
    with (run / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def begin(run: Path, rate: float = 0.1) -> Path:
    """Write what a run has written after two updates."""
    run.mkdir(parents=True)
    (run / "settings.yaml").write_text(f"env: CartPole-v1\nseed: 0\nrate: {rate}\n")
    add_line(run, 100)
    add_line(run, 200)
    return run


def test_the_page_follows_the_files_and_is_computed_only_if_they_change(tmp_path: Path) -> None:
    now = 0.0
    watched = Watched(tmp_path, lambda: now)
    first, page = watched.page()
    assert "There is no run in" in page
    begin(tmp_path / "one")
    assert watched.page() == (first, page)  # files are looked at now and then
    now += 30
    second, page = watched.page()
    assert second != first
    assert "<h1>one</h1>" in page
    assert f'data-version="{second.replace(chr(34), "&quot;")}"' in page
    now += 30
    assert watched.page()[0] == second  # nothing has changed
    add_line(tmp_path / "one", 300)
    with (tmp_path / "one" / "metrics.jsonl").open("a") as file:
        file.write('{"steps": 400, "age')  # is being written
    (tmp_path / "one" / "trace.json").write_text('{"traceEvents": [{"ph": "X", "name": "st')
    begin(tmp_path / "group" / "two")
    EvaluationResult(episodes=(EpisodeRecord(mission="m", episode=0, seed=0),)).to_json(tmp_path / "result.json")
    (tmp_path / "other.json").write_text("{}")
    now += 30
    third, page = watched.page()
    assert third != second
    assert '<td data-value="30.0"' in page
    assert "<h2>Evaluation: result.json</h2>" in page
    assert ">two</th>" in page
    assert "cannot be read" not in page
    assert "other.json" not in page


def test_a_run_that_cannot_be_read_is_told_and_the_others_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(tmp_path / "good")
    begin(tmp_path / "bad<script>")
    (tmp_path / "bad<script>" / "metrics.jsonl").write_text("nonsense\n")
    huge, digits, odd = (begin(tmp_path / name) for name in ("huge", "digits", "odd"))
    line = {"steps": 300, "agents": {"agent_0": {"return": 10**400}}}
    (huge / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    (digits / "settings.yaml").write_text(f"env: CartPole-v1\nseed: 0x{'f' * 6000}\n")
    (odd / "settings.yaml").write_text("env: CartPole-v1\nrate: 0.7\n")
    (begin(tmp_path / "words") / "outcome.json").write_text('{"agents": {}, "ended": "error", "steps": "many"}')
    (begin(tmp_path / "wrong") / "outcome.json").write_text('{"agents": {}, "steps": 1}')

    returns = RunRecord.returns

    def refuse(run: RunRecord) -> Any:
        return 1 / 0 if run.name == "odd" else returns(run)

    monkeypatch.setattr(RunRecord, "returns", refuse)
    _, page = Watched(tmp_path).page()
    for text in (
        "bad&lt;script&gt; cannot be read: Line 1 of",
        f"huge cannot be read: {huge}/metrics.jsonl has a return of agent_0 after 300 steps that is too large",
        f"digits cannot be read: {digits}/settings.yaml cannot be shown: Exceeds the limit",
        "odd cannot be shown: ZeroDivisionError: division by zero",
        "words cannot be read: ",
        "wrong cannot be read: ",
        ">good</th>",
    ):
        assert text in page
    for run, options in ((huge, []), (tmp_path / "words", []), (digits, ["--output", str(tmp_path / "page.html")])):
        done = CliRunner().invoke(app, ["report", str(run), *options])
        assert (done.exit_code, str(run) in done.output) == (2, True)


def test_a_pipe_keeps_nobody_waiting(tmp_path: Path) -> None:
    for path in (tmp_path / "x.json", begin(tmp_path / "run") / "metrics.jsonl"):
        path.unlink(missing_ok=True)
        os.mkfifo(path)
        pipe, data = os.open(path, os.O_RDWR | os.O_NONBLOCK), b"x" * 300
        try:
            os.write(pipe, data)
            Watched(path.parent).page()
            assert os.read(pipe, 1000) == data
        finally:
            os.close(pipe)
        path.unlink()


# ---- the server -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def served(folder: Path) -> Iterator[Server]:
    with Server(Watched(folder), "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def asked(port: int, path: str = "/", method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()
    finally:
        connection.close()


def test_the_server_knows_one_page_and_its_own_names(tmp_path: Path) -> None:
    with served(begin(tmp_path / "run")) as server:
        port = int(server.server_address[1])
        status, headers, page = asked(port)
        assert (status, headers["Content-Type"], headers["X-Frame-Options"]) == (
            200,
            "text/html; charset=utf-8",
            "DENY",
        )
        assert "connect-src 'self'" in page
        assert asked(port, If_None_Match=headers["ETag"])[0::2] == (304, "")
        assert asked(port, method="HEAD")[0::2] == (200, "")
        assert asked(port, "/?x=1")[0] == 200
        for path in ("/settings.yaml", "/../run/settings.yaml", "/favicon.ico", "/%2e%2e/etc/passwd"):
            assert asked(port, path)[0] == 404
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            assert asked(port, method=method)[0] == 501
        for host in ("evil.example", "evil.example:80", "localhost.evil.example", "", "[::", "127.0.0.1.evil.example"):
            status, _, text = asked(port, Host=host)
            assert (status, "collect" in text) == (403, False)
        for host in (f"localhost:{port}", "127.0.0.1", "[::1]:80", "LOCALHOST"):
            assert asked(port, Host=host)[0] == 200


def test_a_client_that_leaves_or_says_nothing_stops_nobody(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with served(begin(tmp_path / "run")) as server, socket.socket() as silent:
        silent.connect(server.server_address)
        port = int(server.server_address[1])
        with socket.create_connection(("127.0.0.1", port)) as rude:
            rude.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert asked(port)[0] == 200
    assert capfd.readouterr().err == ""


def test_what_cannot_be_served_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = CliRunner().invoke(app, ["watch", str(tmp_path), "--port", str(port)])
    assert done.exit_code == 2
    assert f"Port {port} of 127.0.0.1 is in use" in done.output
    for words, text in (
        ([str(tmp_path / "none")], "is not a folder"),
        ([str(tmp_path), "--host", "192.0.2.7"], "192.0.2.7 port 8008 cannot be used"),
        ([str(tmp_path), "--port", "70000"], "65535"),
    ):
        done = CliRunner().invoke(app, ["watch", *words])
        assert done.exit_code == 2
        assert text in " ".join(done.output.replace("│", " ").split())


def test_ctrl_c_ends_it_and_other_interfaces_are_told(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "parallel_envs", "watch", str(tmp_path), "--port", "0", "--host", "0.0.0.0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert f"Watching {tmp_path}: http://localhost:" in line
        assert process.stderr is not None
        warning = process.stderr.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, "Ended.\n")
    assert err == ""
    assert warning == "Who can reach 0.0.0.0 of this machine can read the page: there is no password.\n"


@pytest.mark.skipif(PROGRAM is None, reason=MISSING)
@pytest.mark.slow
def test_in_a_browser_the_page_refreshes_and_keeps_what_the_reader_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[Server.__module__], "LEAST_SECONDS", 0.05)
    one, _ = begin(tmp_path / "runs" / "one"), begin(tmp_path / "runs" / "two", rate=0.2)
    status = "document.getElementById('status').textContent"
    box = "document.querySelector('.filters input[data-kind=agent][value=\"1\"]')"
    head = "document.querySelector('section:first-of-type thead th:nth-child(3)')"
    with Chromium(tmp_path) as browser:
        with served(tmp_path / "runs") as server:
            browser.open(server.url)
            browser.run(f"{box}.click()")
            browser.run(f"{head}.firstElementChild.click()")
            browser.run("document.querySelector('details').open = true")
            browser.run("scrollTo(0, 300)")
            browser.run(f"{head}.firstElementChild.focus({{ preventScroll: true }})")
            before = browser.run("document.documentElement.dataset.version")
            add_line(one, 990)
            browser.wait_for(f"document.documentElement.dataset.version !== '{before}'")
            assert "99" in browser.run("document.querySelector('section:first-of-type table').textContent")
            assert browser.run(status).startswith("Updated at ")
            assert browser.run(f"{box}.checked") is False
            assert browser.run("[...document.querySelectorAll('[data-agent=\"1\"]')].every(one => !one.offsetHeight)")
            assert browser.run(f"{head}.getAttribute('aria-sort')") == "ascending"
            assert browser.run(f"document.activeElement === {head}.firstElementChild")
            assert browser.run("document.querySelector('details').open")
            assert browser.run("scrollY") == 300
            begin(tmp_path / "runs" / "three", rate=0.3)
            browser.wait_for("document.querySelectorAll('.filters input[data-kind=run]').length === 3")
            assert browser.run(f"{box}.checked") is False
            assert browser.problems == []
            assert {url for url in browser.requests if not url.startswith("data:")} == {server.url}
        browser.wait_for(f"{status}.startsWith('No answer')")
