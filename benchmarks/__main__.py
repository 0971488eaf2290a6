"""Entry point of `python -m benchmarks`. Run it from a checkout."""

from __future__ import annotations

from benchmarks.cli import app

if __name__ == "__main__":
    app(prog_name="python -m benchmarks")
