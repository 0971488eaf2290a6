"""Walks through the code: the files and functions in which a step, a rollout, a turn ... runs, in the order of use.

python -m tests.docs.walks        write docs/design/walks.md anew
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from parallel_envs import (
    EnvStateManager,
    IndependentLearners,
    MultiAgentEnvManager,
    ParallelEnvManager,
    PPOConfig,
    collect,
    evaluate,
)

ROOT = Path(__file__).parents[2]
PACKAGE = f"{ROOT / 'parallel_envs'}/"
MARKS = f"{PACKAGE}trace.py"  # nothing happens there unless a trace is open
PAGE = ROOT / "docs/design/walks.md"

Walk = dict[str, list[str]]
"""The functions of each file, both in the order in which they are first called."""


def traced(call: Callable[[], Any]) -> Walk:
    """Return the walk of a call: in this thread, and in threads that it starts."""
    walk: Walk = {}

    def note(frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        is_ours = code.co_filename.startswith(PACKAGE) and code.co_filename != MARKS
        if event == "call" and is_ours and not code.co_name.startswith("<"):
            functions = walk.setdefault(code.co_filename.removeprefix(PACKAGE), [])
            if code.co_qualname not in functions:
                functions.append(code.co_qualname)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return walk


def step(backend: Any) -> Walk:
    with ParallelEnvManager("CartPole-v1", num_envs=2, num_workers=1, backend=backend) as envs:
        envs.reset(seed=0)
        actions = envs.action_space.sample()
        envs.step(actions)
        return traced(lambda: envs.step(actions))


def rollout() -> Walk:
    with ParallelEnvManager("CartPole-v1", num_envs=2, backend="serial") as envs:
        play = partial(collect, envs, lambda observation: 0, num_rollouts=2, seed=2)
        play()
        return traced(play)


def training_iteration() -> Walk:
    config = PPOConfig(rollout_length=16, minibatch_size=16)
    with ExitStack() as closing:
        envs = closing.enter_context(MultiAgentEnvManager("mpe2.simple_spread_v3", num_envs=2, backend="serial"))
        learners = closing.enter_context(IndependentLearners(envs, config, update_mode="fused", seed=1))
        learners.train(32)
        return traced(lambda: learners.train(32))


def groups_turn() -> Walk:
    config = {
        "es_manager": {
            "train": {"env_groups": 1, "group_size": 2, "env_configs": {"tags": ["Arms"], "n_groups": [1]}},
            "max_workers": 1,
        },
        "custom_envs": {"Arms": {"env_type": "bandit", "max_actions_per_traj": 3, "env_config": {}}},
    }
    with EnvStateManager(config, mode="train") as manager:
        says = {"llm_response": "", "llm_raw_response": "", "actions": ["phoenix"]}
        answers = [{"env_id": entry["env_id"], **says} for entry in manager.reset(seed=7)]
        return traced(lambda: manager.step(answers))


def evaluation() -> Walk:
    play = partial(evaluate, "CartPole-v1", {"left": lambda seen: 0}, episodes=2, jobs=0)
    play()
    return traced(play)


IN_THE_CALLER = "with the environments in your own thread: the worker's side is included"
IN_WORKERS = "with the environments in workers: the list shows what runs in your process"
WALKS: dict[str, tuple[str, int, Callable[[], Walk]]] = {
    "A step": (f"`envs.step(actions)`, {IN_THE_CALLER}.", 8, partial(step, "serial")),
    "A step, seen from the caller": (f"`envs.step(actions)`, {IN_WORKERS}.", 8, partial(step, "process")),
    "A rollout": (f"`collect(envs, policy, num_rollouts=2)`, {IN_THE_CALLER}.", 16, rollout),
    "A training iteration": ("`learners.train(32)`: a rollout of three agents, and an update.", 30, training_iteration),
    "A turn of groups": (f"`manager.step(answers)`, {IN_WORKERS}.", 10, groups_turn),
    "An evaluation": ("`evaluate(...)` with `jobs=0`: the worker's side is included.", 23, evaluation),
}
"""The title of each walk, what is called, and the most files that it may pass."""


def page() -> str:
    """Return the text of the page."""
    intro = """
Each list names the files in which a call runs, in the order in which they are reached, and in each file the functions
that are called, as a tracer saw them. Read a walk from top to bottom to follow the call. `python -m tests.docs.walks`
writes this page, and `tests/docs/test_walks.py` compares it with the code.
"""
    parts = ["# Walks through the code", intro.strip()]
    for title, (text, _, walk) in WALKS.items():
        parts.append(f"## {title}\n\n{text}")
        lines = []
        for file, functions in walk().items():
            names = ", ".join(f"`{name.replace('.<locals>', '')}`" for name in functions)
            lines.append(f"1. `{file}`: {names}")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
