"""The layers, read from the source; the public names; and what an import brings in.

The first half reads import statements with `ast` and runs nothing. The second half asks fresh interpreters.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import parallel_envs
from parallel_envs.choices import StartMethod

ROOT = Path(__file__).parents[1]
PACKAGE = "parallel_envs"
FACADE = "(parallel_envs)"  # the package's own __init__.py: names only, resolved on first use

# From the top down. A module may import from the rows below its own, and from itself, nothing else.
LAYERS: list[list[str]] = [
    *(["__main__"], ["cli"], ["bench"], ["testing"], [FACADE]),
    *(["evaluation", "learners", "groups", "integrations"], ["wrappers", "rollouts", "meta"], ["multiagent"]),
    *(["vector", "policies"], ["tasks"], ["engine"], ["trust"], ["env_files"], ["extras"], ["trace"]),
    *(
        ["commands", "devices", "env_ids", "files", "progress", "seeding", "settings", "terminal", "threads"],
        ["errors"],
    ),
    *(["checks"], ["choices"]),
]

# What a layer must never hear of, at whatever depth of a function the import stands.
FOREIGN_TO: dict[str, set[str]] = {
    "engine": {"gymnasium", "pettingzoo", "torch", "ray"},
    "seeding": {"gymnasium", "pettingzoo", "torch"},
    "errors": {"gymnasium", "pettingzoo", "torch", "numpy"},
    "vector": {"pettingzoo", "torch"},
}

PUBLIC_NAMES = """
    ClosedError CollectionInterrupted ConcurrentCall DQNConfig EnvError EnvStateManager EpisodeFailed
    IndependentLearners LoopOptions MissingExtra MultiAgentEnvManager MultiEpisodeWrapper PPOConfig
    ParallelEnvManager ParallelEnvsError PolicyError RemoteError ReplayableEnv Rules SACConfig SeedTree StepTimeout
    UntrustedName VariBadWrapper WorkerDied WorkerStartError WorkerTimeout WrappedMultiAgentPolicy collect
    env_seeds evaluate make_env make_parallel_env tuple_agents vector_entry_point
"""

# Loaded when something asks for them, never by `import parallel_envs`, never by a worker on its own account.
HEAVY = {"torch", "pydantic", "typer", "rich"}
FRAMEWORKS = {"gymnasium", "pettingzoo"}


@dataclass(frozen=True)
class Import:
    """One module named by an import statement; eager when it is imported as soon as its file is."""

    file: Path
    line: int
    module: str
    eager: bool

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line} imports {self.module}"


def sources(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if ".venv" not in path.parts)


def module_name(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(file): file for file in sources(ROOT / PACKAGE)}


def imports_of(file: Path) -> list[Import]:
    """Every import in `file`, those inside functions and for type checkers included."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return [
        Import(file, node.lineno, module, eager)
        for node, eager in import_nodes(tree, eager=True)
        for module in named_modules(node, file)
    ]


def import_nodes(node: ast.AST, eager: bool) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, eager
        late = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for_types = isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING")
        yield from import_nodes(child, eager and not late and not for_types)


def named_modules(node: ast.Import | ast.ImportFrom, file: Path) -> list[str]:
    """The modules an import names: of `from a import b`, `a.b` where that is a module of ours, else `a`."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    base = absolute_base(node, file)
    full = [f"{base}.{alias.name}" for alias in node.names]
    return sorted({name if name in MODULES else base for name in full})


def absolute_base(node: ast.ImportFrom, file: Path) -> str:
    if node.level == 0:
        return node.module or ""
    steps_up = node.level - (file.name == "__init__.py")
    parts = module_name(file).split(".")
    return ".".join([*parts[: len(parts) - steps_up], *([node.module] if node.module else [])])


def unit(module: str) -> str:
    """The entry of the table that a module of ours belongs to."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else FACADE


def is_ours(module: str) -> bool:
    return module.split(".")[0] == PACKAGE


ROW_OF = {name: row for row, names in enumerate(LAYERS) for name in names}
ALL_IMPORTS = [found for file in MODULES.values() for found in imports_of(file)]


def importer(found: Import) -> str:
    return unit(module_name(found.file))


def test_imports_point_down_to_modules_that_exist_and_are_not_foreign() -> None:
    assert {unit(module) for module in MODULES} <= set(ROW_OF)
    ours = [found for found in ALL_IMPORTS if is_ours(found.module)]
    assert [str(found) for found in ours if found.module not in MODULES] == []
    across = [found for found in ours if unit(found.module) != importer(found)]
    assert [str(found) for found in across if ROW_OF[unit(found.module)] <= ROW_OF[importer(found)]] == []
    foreign = [one for one in ALL_IMPORTS if one.module.split(".")[0] in FOREIGN_TO.get(importer(one), set())]
    assert [str(found) for found in foreign] == []


def test_no_import_cycles() -> None:
    assert cycle_in({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert cycle_in({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["a", "b", "c"]
    graph: dict[str, set[str]] = {module: set() for module in MODULES}
    for found in ALL_IMPORTS:
        if found.eager and found.module in MODULES:
            graph[module_name(found.file)].add(found.module)
    assert cycle_in(graph) == []


def cycle_in(graph: dict[str, set[str]]) -> list[str]:
    """The nodes that are left when everything without a dependency has been taken away again and again."""
    left = {node: set(edges) for node, edges in graph.items()}
    while free := {node for node, edges in left.items() if not edges & left.keys()}:
        left = {node: edges for node, edges in left.items() if node not in free}
    return sorted(left)


def test_wrappers_is_imported_by_its_full_name_only() -> None:
    short = re.compile(r"^\s*(import|from)\s+wrappers\b", re.MULTILINE)
    files = [file for folder in (PACKAGE, "tests", "examples", ".ci") for file in sources(ROOT / folder)]
    assert [file for file in files if short.search(file.read_text(encoding="utf-8"))] == []


def public_modules() -> list[str]:
    """The package and the modules directly in it that list their names in `__all__`."""
    names = sorted(name for name in MODULES if name.count(".") <= 1 and "._" not in name)
    return [name for name in names if "\n__all__ = " in MODULES[name].read_text(encoding="utf-8")]


def test_every_public_name_is_exported_and_every_exported_name_resolves() -> None:
    for name in public_modules():
        module = importlib.import_module(name)
        exported = list(getattr(module, "__all__", []))
        assert len(exported) == len(set(exported))
        assert [export for export in exported if not hasattr(module, export)] == []
        for public, value in vars(module).items():
            if not public.startswith("_") and (inspect.isclass(value) or inspect.isroutine(value)):
                home = getattr(value, "__module__", None) or ""
                own = home == name or (hasattr(module, "__path__") and home.startswith(f"{name}."))
                assert not own or public in exported, (name, public)


def test_the_top_level_names_are_these() -> None:
    package = importlib.import_module(PACKAGE)
    assert sorted(package.__all__) == sorted(PUBLIC_NAMES.split())
    assert set(dir(package)) >= set(package.__all__)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = package.no_such_name


def in_fresh_interpreter(program: str) -> Any:
    """What `program` leaves in `answer`, run by an interpreter that has imported nothing of ours."""
    script = f"import json, sys, time\n{program}\nprint(json.dumps(answer))"
    command, environment = [sys.executable, "-c", script], {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_an_import_brings_in_no_heavy_library() -> None:
    alone, groups, others = in_fresh_interpreter(
        f"import {PACKAGE}\nanswer = [sorted(sys.modules)]\n"
        f"{PACKAGE}.EnvStateManager; import {PACKAGE}.groups.env_workers; answer.append(sorted(sys.modules))\n"
        f"{PACKAGE}.ParallelEnvManager; {PACKAGE}.MultiAgentEnvManager\n"
        f"import {PACKAGE}.rollouts, {PACKAGE}.policies, {PACKAGE}.evaluation, {PACKAGE}.integrations\n"
        "answer.append(sorted(sys.modules))"
    )
    assert {name for name in alone if is_ours(name)} == {PACKAGE, f"{PACKAGE}.extras"}
    assert set(alone) & (HEAVY | FRAMEWORKS | {"numpy", "cloudpickle"}) == set()
    assert f"{PACKAGE}.groups.manager" in groups
    assert set(groups) & (HEAVY | FRAMEWORKS) == set()
    assert {f"{PACKAGE}.vector", f"{PACKAGE}.multiagent"} <= set(others)
    assert set(others) & (HEAVY | {"pettingzoo"}) == set()


def test_importing_takes_less_than_half_a_second_beyond_gymnasium() -> None:
    """In seconds of CPU, which a busy machine does not stretch; the usual figure is a tenth of the bound."""
    program = (
        "import gymnasium.vector\nstart = time.process_time()\nimport parallel_envs.vector as v\n"
        "assert v.manager.ParallelEnvManager is v.ParallelEnvManager\nanswer = time.process_time() - start"
    )
    assert in_fresh_interpreter(program) < 0.5


@pytest.mark.parametrize("context", ["forkserver", pytest.param("spawn", marks=pytest.mark.slow)])
def test_a_worker_brings_in_no_heavy_library(context: StartMethod) -> None:
    with parallel_envs.ParallelEnvManager("CartPole-v1", num_envs=2, context=context) as manager:
        manager.reset(seed=0)
        manager.step(manager.action_space.sample())
        for loaded in manager.apply(lambda env: sorted(sys.modules)):
            assert "gymnasium" in loaded
            assert set(loaded) & (HEAVY | {"pettingzoo", "pytest"}) == set()
