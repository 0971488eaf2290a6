"""A headless Chromium for tests, driven over its debugging pipe (DevTools protocol): no further package is needed.

with Chromium(tmp_path) as browser:
    browser.open("file:///tmp/report.html")
    browser.run("document.querySelector('button').click()")
    assert browser.problems == []
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Self

PROGRAM = shutil.which("chromium") or shutil.which("google-chrome")
MISSING = "Chromium is not installed"

_SECONDS = 40.0
_KEYS = {"Tab": 9, "Enter": 13, " ": 32}


class Chromium:
    """One browser with one page. `problems`: errors and warnings of its console. `requests`: what it has asked for."""

    def __init__(self, folder: Path) -> None:
        assert PROGRAM is not None
        self.problems: list[str] = []
        self.requests: list[str] = []
        self._number, self._waiting, self._session = 0, b"", ""
        self._loads = 0
        theirs, self._write = os.pipe()
        self._read, answers = os.pipe()
        high = [fcntl.fcntl(one, fcntl.F_DUPFD, 100) for one in (theirs, answers)]  # 3 and 4 may be in use here
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        options += [f"--user-data-dir={folder / 'chromium'}", "--remote-debugging-pipe", "--window-size=1200,900"]
        options += ["--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1", "--disable-component-update"]
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{high[0]} 4>&{high[1]}', "bash", PROGRAM, *options],
            pass_fds=high,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        for one in (theirs, answers, *high):
            os.close(one)

    def __enter__(self) -> Self:
        try:
            target = self.ask("Target.createTarget", url="about:blank")["targetId"]
            self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.ask(f"{domain}.enable")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the browser and all of its processes."""
        with contextlib.suppress(OSError, AssertionError):
            self._session = ""
            self.ask("Browser.close")
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._read)
        os.close(self._write)

    # ---- what tests do with it --------------------------------------------------------------------------------------

    def open(self, url: str) -> None:
        """Go to a page and wait until it is loaded."""
        before = self._loads
        self.ask("Page.navigate", url=url)
        self._until(lambda: self._loads > before)

    def run(self, script: str) -> Any:
        """Return the value of an expression, awaited if it is a promise."""
        found = self.ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait_for(self, script: str) -> None:
        """Wait until an expression is true."""
        deadline = time.monotonic() + _SECONDS
        while not self.run(script):
            assert time.monotonic() < deadline, f"{script} did not become true"
            with contextlib.suppress(AssertionError):
                self._until(lambda: False, seconds=0.05)

    def press(self, key: str) -> None:
        """Press a key as a user does: "Tab", "Enter" or " "."""
        text = {"Enter": "\r", " ": " "}.get(key)
        code = {"key": key, "code": "Space" if key == " " else key, "windowsVirtualKeyCode": _KEYS[key]}
        self.ask("Input.dispatchKeyEvent", type="keyDown", **code, **({"text": text} if text else {}))
        self.ask("Input.dispatchKeyEvent", type="keyUp", **code)

    def look(self, *, width: int, dark: bool = False, media: str = "") -> None:
        """Set the width of the window, the reader's colours, and the medium ("print")."""
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.ask("Emulation.setEmulatedMedia", media=media, features=features)
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)

    def picture(self, path: Path, clip: dict[str, float] | None = None) -> None:
        """Write a PNG of the whole page, or of a part of it."""
        more = {"clip": {**clip, "scale": 1}} if clip else {}
        found = self.ask("Page.captureScreenshot", captureBeyondViewport=True, **more)
        path.write_bytes(base64.b64decode(found["data"]))

    def pdf(self) -> bytes:
        """Return the page as it is printed."""
        return base64.b64decode(self.ask("Page.printToPDF", printBackground=False)["data"])

    # ---- messages ---------------------------------------------------------------------------------------------------

    def ask(self, method: str, **values: Any) -> dict[str, Any]:
        """Send a command and return its answer."""
        self._number += 1
        number, found = self._number, dict[str, Any]()
        message = {"id": number, "method": method, "params": values}
        if self._session and not method.startswith("Browser."):
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")

        def is_answered() -> bool:
            return bool(found)

        def take(answer: dict[str, Any]) -> None:
            if answer.get("id") == number:
                assert "error" not in answer, answer
                found.update(answer)

        self._until(is_answered, take=take)
        result: dict[str, Any] = found["result"]
        return result

    def _until(self, is_done: Any, *, take: Any = None, seconds: float = _SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while not is_done():
            left = deadline - time.monotonic()
            assert select.select([self._read], [], [], max(left, 0.0))[0], "Chromium does not answer"
            data = os.read(self._read, 1 << 20)
            assert data, "Chromium has ended"
            *whole, self._waiting = (self._waiting + data).split(b"\0")
            for message in map(json.loads, whole):
                self._note(message.get("method", ""), message.get("params", {}))
                if take is not None:
                    take(message)

    def _note(self, event: str, values: dict[str, Any]) -> None:
        if event == "Page.loadEventFired":
            self._loads += 1
        elif event == "Network.requestWillBeSent":
            self.requests.append(values["request"]["url"])
        elif event == "Runtime.exceptionThrown":
            self.problems.append(str(values["exceptionDetails"]))
        elif event == "Runtime.consoleAPICalled" and values["type"] in ("error", "warning", "assert"):
            self.problems.append(str(values["args"]))
        elif event == "Log.entryAdded" and values["entry"]["level"] in ("error", "warning"):
            self.problems.append(str(values["entry"]))
