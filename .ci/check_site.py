"""Check a built site: `python .ci/check_site.py DIR`.

Every link and picture leads to a file, and every anchor to an element. Where Chromium is installed, it opens each page
without a network: a page may not need one, and may not write errors to the console. The search of the site finds the
pages that answer the questions below among its first three.
"""

from __future__ import annotations

import functools
import http.server
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote_plus, unquote, urlsplit

SECONDS, NUM_BROWSERS = 60, 3
QUESTIONS = {
    "restart crashed environments": "guides/when-something-breaks",
    "evaluate saved policy parallel": "guides/evaluation",
    "train PettingZoo agents": "guides/training",
    "tasks": "guides/tasks",
    "which worker is slow": "guides/debugging",
    "resume run": "guides/training",
    "write group environment": "guides/group-environments",
    "SB3": "start/coming-from",
    "how many workers": "start/which-backend",
    "environment hangs": "guides/when-something-breaks",
    "cannot be pickled travel to a worker process": "reference/errors",
    "did not answer within seconds": "reference/errors",
}
"""What a new user types into the search, and the page with the answer."""


class Page(HTMLParser):
    """The targets of a page (links, pictures, scripts, styles) and the names of its elements."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.targets: set[str] = set()
        self.names: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect what an element refers to, and its own name."""
        for key, value in attrs:
            if key in ("href", "src") and value is not None:
                self.targets.add(value)
            elif key in ("id", "name") and value is not None:
                self.names.add(value)


def broken_targets(site: Path) -> Iterator[str]:
    """Yield each link that leads nowhere."""
    pages = {path.resolve(): Page(path) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        for target in sorted(page.targets):
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            found = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not found.exists():
                yield f"{path.relative_to(site)}: {target}: there is no such file"
            elif parts.fragment and found in pages and unquote(parts.fragment) not in pages[found].names:
                yield f"{path.relative_to(site)}: {target}: there is no such place on the page"


def console_errors(site: Path, browser: str) -> Iterator[str]:
    """Yield each page on which the browser reports an error, or that asks for something from the network."""
    pages = sorted(site.rglob("*.html"))
    with ThreadPoolExecutor(NUM_BROWSERS) as pool:
        all_ran = pool.map(lambda path: opened(path.as_uri(), browser, "--host-resolver-rules=MAP * ~NOTFOUND"), pages)
        for path, ran in zip(pages, all_ran, strict=True):
            lines = [line for line in ran.stderr.splitlines() if "CONSOLE" in line]
            if ran.returncode or "</html>" not in ran.stdout or lines:
                yield f"{path.relative_to(site)}: {lines or ran.stderr[-500:]}"


def unanswered(site: Path, browser: str) -> Iterator[str]:
    """Yield each question whose page is not among the first three that the search of the site finds."""
    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for words, page in QUESTIONS.items():
            address = f"http://127.0.0.1:{server.server_port}/search.html?q={quote_plus(words)}"
            shown = opened(address, browser, "--virtual-time-budget=10000").stdout.partition('id="search-results"')[2]
            found = list(dict.fromkeys(re.findall(r'<li[^>]*><a href="([^"#?]+)\.html', shown)))
            if page not in found[:3]:
                yield f"The search for {words!r} does not lead to {page}, but to {found[:3]}."
        server.shutdown()


class Quiet(http.server.SimpleHTTPRequestHandler):
    """A server of files that writes no log."""

    def log_message(self, *_: object) -> None:
        """Write nothing."""


def opened(address: str, browser: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Open a page in the browser, and return what it wrote."""
    with tempfile.TemporaryDirectory() as profile:
        command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0"]
        command += [f"--user-data-dir={profile}", *options, "--dump-dom", address]
        return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)


def main() -> int:
    """Check the site in the folder that is given. Return 1 if something is wrong."""
    site = Path(sys.argv[1]).resolve()
    problems = list(broken_targets(site))
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        print("No Chromium was found, so the pages were not opened.")
    else:
        problems += [*console_errors(site, browser), *unanswered(site, browser)]
    print("\n".join(problems) or f"{len(list(site.rglob('*.html')))} pages are in order.")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
