"""`python -m parallel_envs`."""

from __future__ import annotations

from parallel_envs.cli import main

if __name__ == "__main__":
    main()
