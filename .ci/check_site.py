"""Check a built site: `python .ci/check_site.py DIR`.

Every link and picture leads to a file, and every anchor to an element. Where Chromium is installed, it opens each page
without a network: a page may not need one, and may not write errors to the console.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

SECONDS = 60


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
    for path in sorted(site.rglob("*.html")):
        with tempfile.TemporaryDirectory() as profile:
            command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0"]
            command += [f"--user-data-dir={profile}", "--host-resolver-rules=MAP * ~NOTFOUND", "--dump-dom"]
            ran = subprocess.run(
                [*command, path.as_uri()], capture_output=True, text=True, timeout=SECONDS, check=False
            )
        lines = [line for line in ran.stderr.splitlines() if "CONSOLE" in line]
        if ran.returncode or "</html>" not in ran.stdout or lines:
            yield f"{path.relative_to(site)}: {lines or ran.stderr[-500:]}"


def main() -> int:
    """Check the site in the folder that is given. Return 1 if something is wrong."""
    site = Path(sys.argv[1]).resolve()
    problems = list(broken_targets(site))
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        print("No Chromium was found, so the pages were not opened.")
    else:
        problems += console_errors(site, browser)
    print("\n".join(problems) or f"{len(list(site.rglob('*.html')))} pages are in order.")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
