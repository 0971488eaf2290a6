"""`parallel-envs watch`: the page of a run, or of a folder of runs, served while they train.

    browser ── GET / ──▶ Watched: have files changed since the last page? ── no ──▶ 304, or the page as it is
                                                                          └─ yes ─▶ the page, computed anew

The server answers on the loopback interface unless another host is given, knows the one path `/`, and reads the runs
alone. Files are looked at every two seconds at most, and only those that have changed are read again.
"""

from __future__ import annotations

import errno
import ipaddress
import math
import secrets
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

LEAST_SECONDS = 2.0
"""Files are looked at no more often."""
_PAUSES, _LONGEST_SECONDS = 4, 10.0  # the pause is so many times what a page took: the runs need the processor more
_MOST_RUNS = 50  # of a folder: those whose files changed last
_IDLE_SECONDS = 10.0  # for a client that sends nothing
_HEAD_BYTES = 200  # of a JSON file, which say whether it is an evaluation


def watch(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run, or a folder with runs in it.")],
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="N", help="The port. 0: a free one.")] = 8008,
    host: Annotated[
        str, typer.Option(metavar="HOST", help="The address to listen on. Others than this show the page to others.")
    ] = "127.0.0.1",
) -> None:
    """Serve the page of a run, or of all runs in a folder, while they train. The page refreshes itself. Ctrl-C ends it.

    Examples:
      parallel-envs watch runs/cartpole
      parallel-envs watch runs
      parallel-envs watch runs --port 8080
    """
    from parallel_envs.cli.outputs import ExitCode, plain_errors
    from parallel_envs.errors import MissingExtra
    from parallel_envs.extras import require

    with plain_errors(MissingExtra):
        require("A page of runs", "matplotlib", "torch", "safetensors")
    if not folder.is_dir():
        raise typer.BadParameter(f"{folder} is not a folder. Give the folder of a run, or one with runs in it.")
    try:
        server = Server(Watched(folder), host, port)
    except (OSError, UnicodeError) as error:
        text = f"{host} port {port} cannot be used: {getattr(error, 'strerror', None) or error}."
        if getattr(error, "errno", None) == errno.EADDRINUSE:
            text = f"Port {port} of {host} is in use, perhaps by another `watch`. Give another: --port {port + 1}."
        typer.echo(text, err=True)
        raise typer.Exit(ExitCode.REFUSED) from None
    with server:
        try:
            typer.echo(f"Watching {folder}: {server.url} (Ctrl-C ends it)")
            if not server.is_loopback:
                typer.echo(f"Who can reach {host} of this machine can read the page: there is no password.", err=True)
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            typer.echo("Ended.")


# ---- what is watched ------------------------------------------------------------------------------------------------


class Watched:
    """The page of a folder. It is computed when it is asked for and files have changed. Threads may share it."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.folder, self._clock, self._lock = folder, clock, threading.Lock()
        self._next_look, self._stamps = -math.inf, dict[Path, Any]()
        self._version, self._page = "", ""
        self._known: dict[Path, tuple[Any, Any]] = {}  # runs and results by path, each with the stamp of its files

    def page(self) -> tuple[str, str]:
        """Return the version of the page, which changes with the files, and the page."""
        with self._lock:
            if self._clock() >= self._next_look:
                began, stamps = time.thread_time(), self._find()
                if stamps != self._stamps or not self._page:
                    version = f'"{secrets.token_hex(8)}"'
                    self._page = self._compute(stamps, version)
                    self._stamps, self._version = stamps, version
                took = time.thread_time() - began
                self._next_look = self._clock() + max(LEAST_SECONDS, min(_PAUSES * took, _LONGEST_SECONDS))
            return self._version, self._page

    def _find(self) -> dict[Path, Any]:
        """Return the folders of runs and the files of evaluations, each with the times and sizes of its files."""
        from parallel_envs.learners.run_folder import METRICS, OUTCOME, SETTINGS, TRACE

        shown = SETTINGS, METRICS, OUTCOME, TRACE, "videos"  # what the part of a run is made from
        runs = [self.folder] if (self.folder / SETTINGS).is_file() else []
        runs = runs or [path.parent for depth in ("*", "*/*") for path in self.folder.glob(f"{depth}/{SETTINGS}")]
        stamps: dict[Path, Any] = {run: [_stamp(run / name) for name in shown] for run in runs}
        newest = sorted(runs, key=lambda run: max(filter(None, stamps[run]), default=(0, 0)))[-_MOST_RUNS:]
        found = {run: stamps[run] for run in sorted(newest)}
        return found | {path: [_stamp(path)] for path in sorted(self.folder.glob("*.json")) if _is_evaluation(path)}

    def _compute(self, stamps: Mapping[Path, Any], version: str) -> str:
        """Return the page of all runs and evaluations that can be read, with a remark on each of the others."""
        from parallel_envs.cli.report import EvaluationRecord, RunRecord, page_of, short_names
        from parallel_envs.evaluation import EvaluationResult

        runs, results, remarks, known = list[RunRecord](), list[EvaluationRecord](), list[str](), self._known
        self._known = {}  # what has gone is forgotten
        names = short_names(list(stamps))
        for (path, stamp), name in zip(stamps.items(), names, strict=True):
            try:
                was, found = known.get(path, (None, None))
                if was != (name, stamp):
                    is_file = path.suffix == ".json" and not path.is_dir()
                    found = EvaluationResult.from_json(path) if is_file else RunRecord.read(path, name)
                self._known[path] = (name, stamp), found
                if isinstance(found, RunRecord):
                    runs.append(found)
                elif found is not None:
                    results.append(EvaluationRecord(name, found, path.parent))
            except Exception as error:  # noqa: BLE001  # files may hold anything, and the others are to be seen
                remarks.append(f"{name} cannot be read: {_reason(error)}")
        if not stamps:
            remarks.append(f"There is no run in {self.folder} yet. It appears here when it begins.")
        try:
            return page_of(runs, results, remarks=remarks, version=version)
        except Exception:  # noqa: BLE001  # one of them cannot be drawn
            shown: list[RunRecord | EvaluationRecord] = [*runs, *results]
            for one in shown:
                try:
                    page_of([one], []) if isinstance(one, RunRecord) else page_of([], [one])
                except Exception as error:  # noqa: BLE001
                    remarks.append(f"{one.name} cannot be shown: {_reason(error)}")
                    runs = [other for other in runs if other is not one]
                    results = [other for other in results if other is not one]
            return page_of(runs, results, remarks=remarks, version=version)


def _reason(error: Exception) -> str:
    """Return what an error says; with its type if it is not one of ours, which are sentences."""
    from parallel_envs.evaluation.records import BadDocument
    from parallel_envs.learners.run_folder import BadRun

    return str(error) if isinstance(error, BadRun | BadDocument | OSError) else f"{type(error).__name__}: {error}"


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
        return found.st_mtime_ns, found.st_size
    except OSError:
        return None


def _is_evaluation(path: Path) -> bool:
    from parallel_envs.evaluation.records import KIND

    try:
        if not path.is_file():  # a pipe has no end
            return False
        with path.open("rb") as file:
            return f'"kind": "{KIND}"'.encode() in file.read(_HEAD_BYTES)
    except OSError:
        return False


# ---- the server -----------------------------------------------------------------------------------------------------


class Server(socketserver.ThreadingTCPServer):
    """Serves the page of `watched`. Raises OSError if it cannot listen there."""

    allow_reuse_address = True
    daemon_threads = True  # a client that is slow keeps nobody waiting, nor the end of the program

    def __init__(self, watched: Watched, host: str, port: int) -> None:
        self.watched, self.host = watched, host
        self.address_family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        super().__init__((str(address[0]), int(address[1])), PageHandler)
        self.address = ipaddress.ip_address(str(address[0]))

    @property
    def is_loopback(self) -> bool:
        """True if only programs of this machine can connect."""
        return self.address.is_loopback

    @property
    def url(self) -> str:
        """The address of the page."""
        name = "localhost" if self.address.is_unspecified else self.host
        return f"http://{f'[{name}]' if ':' in name else name}:{self.server_address[1]}/"

    def is_known(self, host: str) -> bool:
        """Return whether a request may name this host: an address, `localhost`, or the name that was given.

        A site of the internet can have its own name lead to this machine (DNS rebinding), and its script could then
        read the page under that name. So other names are refused.
        """
        try:
            name = urlsplit(f"//{host}").hostname or ""
            if name in ("localhost", self.host.lower(), socket.gethostname().lower()):
                return True
            return bool(ipaddress.ip_address(name))
        except ValueError:
            return False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that have gone."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class PageHandler(BaseHTTPRequestHandler):
    """Answers GET and HEAD of `/`."""

    server: Server
    server_version, sys_version = "parallel-envs", ""
    timeout = _IDLE_SECONDS

    def do_GET(self) -> None:
        """Send the page, or that it has not changed."""
        if not self.server.is_known(self.headers.get("Host", "")):
            self._send(HTTPStatus.FORBIDDEN, f"This host is not known here. The page is at {self.server.url}")
        elif self.path.partition("?")[0] != "/":
            self._send(HTTPStatus.NOT_FOUND, f"There is only one page: {self.server.url}")
        else:
            try:
                version, page = self.server.watched.page()
            except Exception as error:  # noqa: BLE001  # files may hold anything; the next request may find others
                self._send(HTTPStatus.INTERNAL_SERVER_ERROR, f"No page: {type(error).__name__}: {error}")
                return
            if self.headers.get("If-None-Match") == version:
                self._send(HTTPStatus.NOT_MODIFIED, "", version)
            else:
                self._send(HTTPStatus.OK, page, version, "text/html")

    do_HEAD = do_GET  # noqa: N815  # the name that the base class calls

    def _send(self, status: HTTPStatus, text: str, version: str = "", kind: str = "text/plain") -> None:
        body = text.encode("utf-8", "replace")
        self.send_response(status)
        headers = {"Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY"}
        headers |= {"Referrer-Policy": "no-referrer"} | ({"ETag": version} if version else {})
        if status != HTTPStatus.NOT_MODIFIED:
            headers |= {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(body))}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # as in the base class
        """Write no line for each request."""
