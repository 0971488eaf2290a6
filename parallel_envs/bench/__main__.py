"""`python -m parallel_envs.bench`."""

from __future__ import annotations

from parallel_envs.bench.cli import app

if __name__ == "__main__":
    app(prog_name="python -m parallel_envs.bench")
