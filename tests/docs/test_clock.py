"""The table of all defaults that are measured by a clock (docs/reference/clock.md), beside the code."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "parallel_envs"
PAGE = (ROOT / "docs/reference/clock.md").read_text(encoding="utf-8")
ROWS = {
    name: (value, change)
    for name, value, change in re.findall(r"^\| `([^`]+)` \| `([^`]+)` \| (.+) \|$", PAGE, re.MULTILINE)
}

CHANGES = "Results"
ONLY_IF_ASKED = re.compile(
    r'\bif you give one\b|\bwith "\w+"|\bwith `action_timeout` only\b|\bif you give bounds\b', re.IGNORECASE
)
NEEDS_TORCH = ("learners", "wrappers.local")


def default_of(name: str) -> Any:
    """The default in the code: of `module.CONSTANT`, `module.Class.field`, `module.function(parameter)`."""
    path, _, parameter = name.rstrip(")").partition("(")
    parts = path.split(".")
    number = next(n for n in range(len(parts), 0, -1) if PACKAGE.joinpath(*parts[:n]).with_suffix(".py").is_file())
    found: Any = importlib.import_module(".".join(["parallel_envs", *parts[:number]]))
    for part in parts[number:]:
        fields = getattr(found, "model_fields", None) or getattr(
            found, "__dataclass_fields__", {}
        )  # pydantic's, or not
        found = fields[part].default if part in fields else getattr(found, part)
    return inspect.signature(found).parameters[parameter].default if parameter else found


@pytest.mark.parametrize("name", ROWS)
def test_every_default_in_the_table_is_that_of_the_code(name: str) -> None:
    if name.startswith(NEEDS_TORCH):
        pytest.importorskip("torch")
    assert ROWS[name][0] == repr(default_of(name))


def test_what_changes_results_is_asked_for_or_in_bold() -> None:
    """A default that changes results without being asked for is an exception, and the text above names it."""
    bold = {name for name, (_, change) in ROWS.items() if "**" in change}
    assert bold == {"rollouts.collector.collect(exact)"}
    for name, (value, change) in ROWS.items():
        if change.startswith(CHANGES):
            assert ONLY_IF_ASKED.search(change), name
            assert value in ("None", "False", "0.0", "5.0", "'sync'", "'sequential'", "'round_robin'", "'fused'"), name


# ---- that none is missing -----------------------------------------------------------------------------------------

TIMED = re.compile(r"timeout|seconds|patience|deadline|lateness|glancing|_window|gather", re.IGNORECASE)
NO_CLOCK = {
    "backend": '"auto" tries what can be started',
    "context": "None is what the system can do",
    **dict.fromkeys(("device", "AUTO"), '"auto" is the first that there is'),
    "where": '"auto" goes by the type of the environment',
    "split": '"auto" goes by the mode',
}
MEASURED = {
    "engine/worker.py": "numbers of columns",
    "engine/channel.py": "the longest that the system can wait",
    "vector/shared_arrays.py": "numbers of columns",
}
"""Files whose names with `SECONDS` are not durations, or none that anything waits for."""


def defaults() -> Iterator[tuple[str, str, str]]:
    """The file, the name and the value of every default that looks as if it had to do with time, from the source."""
    for file in sorted(PACKAGE.rglob("*.py")):
        where = file.relative_to(PACKAGE).as_posix()
        if where.startswith(("bench/", "testing/")) or where in MEASURED:
            continue
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                arguments = [*node.args.posonlyargs, *node.args.args]
                some = zip(arguments[len(arguments) - len(node.args.defaults) :], node.args.defaults, strict=True)
                more = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
                given = [(one.arg, value) for one, value in (*some, *more)]
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                given = [(node.target.id, node.value)]
            elif isinstance(node, ast.Assign):
                given = list(assigned(node))
            else:
                continue
            for name, value in given:
                if isinstance(value, ast.Constant | ast.Dict) and is_timed(name, value):
                    yield where, name, ast.unparse(value)


def assigned(node: ast.Assign) -> Iterator[tuple[str, ast.expr]]:
    """Constants, also those of `A, B = 1.0, 2.0`."""
    (target, *_), value = node.targets, node.value
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        pairs = zip(target.elts, value.elts, strict=True)
    else:
        pairs = zip([target], [value], strict=True)
    yield from ((one.id, part) for one, part in pairs if isinstance(one, ast.Name) and one.id.isupper())


def is_timed(name: str, value: ast.expr) -> bool:
    constant = value.value if isinstance(value, ast.Constant) else ...
    if constant is None:
        return False  # no clock at all
    return (constant == "auto" and name not in NO_CLOCK) or bool(TIMED.search(name))


NO_DEADLINE = {("wrappers/policy_handle.py", "seconds"), ("wrappers/base.py", "late_seconds")}
"""Fields that hold what was measured."""


def test_no_default_is_missing() -> None:
    told = {(name.partition(".")[0], re.split(r"[.(]", name.rstrip(")"))[-1]) for name in ROWS}
    missing = {
        f"{where}: {name}={value}"
        for where, name, value in defaults()
        if (where.removesuffix(".py").partition("/")[0], name) not in told and (where, name) not in NO_DEADLINE
    }
    assert missing == set()


CLOCK = re.compile(r"\b(?:perf_counter|monotonic|process_time|setitimer)\b|\bsleep\(|\btime\.time(?:_ns)?\(")
READERS = {
    f"{room}/{name}.py": room
    for room, names in {
        "evaluation": "running episode evaluate",
        "wrappers": "auto base local multi policy_handle pool process",
        "vector": "manager recovery step_loop tracing worker_envs",
        "engine": "fork_server output pool process supervisor supervisor_client worker restart_budget worker_process",
        "groups": "env_host transport env_workers",
        "rollouts": "collector",
        "learners": "progress independent loops/loop loops/learner_thread meta/learner sweep train "
        "updates/auto updates/fused updates/mode writers",
        "cli": "doctor episode_display watch",
    }.items()
    for name in names.split()
} | {"threads.py": "threads", "trace.py": "trace", "progress.py": "progress"}
"""The files that read a clock, and whose rows say what for. Another one has to be thought about, and put here."""


def test_no_other_file_reads_a_clock() -> None:
    found = {
        where
        for file in PACKAGE.rglob("*.py")
        if not (where := file.relative_to(PACKAGE).as_posix()).startswith(("bench/", "testing/"))
        and CLOCK.search(file.read_text(encoding="utf-8"))
    }
    assert found == set(READERS)
    assert all(any(name.startswith(f"{room}.") for name in ROWS) for room in READERS.values())
