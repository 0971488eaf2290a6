"""The layers, read from the source; the public names; and what an import brings in.

The first half reads import statements with `ast` and runs nothing. The second half asks fresh interpreters.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import pytest

import parallel_envs
from parallel_envs.choices import StartMethod

ROOT = Path(__file__).parents[1]
PACKAGE = "parallel_envs"
FACADE = "(parallel_envs)"  # the package's own __init__.py: names only, resolved on first use

# From the top down. A module may import from the rows below its own, and from itself, nothing else.
LAYERS: list[list[str]] = [
    ["__main__"],
    ["cli"],
    ["bench"],
    ["testing"],
    [FACADE],
    ["evaluation", "learners", "groups"],
    ["wrappers", "rollouts", "meta"],
    ["multiagent"],
    ["vector", "policies"],
    ["tasks"],
    ["engine"],
    ["trust", "lazy"],
    ["env_files"],
    ["extras", "shell_commands"],
    [
        "commands",
        "env_ids",
        "seeding",
        "threads",
        "closing",
        "yaml_files",
        "files",
        "field_texts",
        "fitting_tables",
    ],
    ["errors"],
    ["spelling"],
    ["choices"],
]

# What a layer must never hear of, at whatever depth of a function the import stands.
FOREIGN_TO: dict[str, set[str]] = {
    "engine": {"gymnasium", "pettingzoo", "torch", "ray"},
    "seeding": {"gymnasium", "pettingzoo", "torch"},
    "errors": {"gymnasium", "pettingzoo", "torch", "numpy"},
    "vector": {"pettingzoo", "torch"},
}

PUBLIC_NAMES = {
    "ClosedError",
    "CollectionInterrupted",
    "ConcurrentCall",
    "DQNConfig",
    "EnvError",
    "EnvStateManager",
    "EpisodeFailed",
    "IndependentLearners",
    "LoopOptions",
    "MissingExtra",
    "MultiAgentEnvManager",
    "MultiEpisodeWrapper",
    "PPOConfig",
    "ParallelEnvManager",
    "ParallelEnvsError",
    "PolicyError",
    "RemoteError",
    "Rules",
    "SACConfig",
    "SeedTree",
    "StepTimeout",
    "UntrustedName",
    "VariBadWrapper",
    "WorkerDied",
    "WorkerStartError",
    "WorkerTimeout",
    "WrappedMultiAgentPolicy",
    "collect",
    "env_seeds",
    "evaluate",
    "make_env",
    "make_parallel_env",
    "tuple_agents",
    "vector_entry_point",
}

# Loaded when something asks for them, never by `import parallel_envs`, never by a worker on its own account.
HEAVY = {"torch", "pydantic", "typer", "rich"}
FRAMEWORKS = {"gymnasium", "pettingzoo"}

# ---- reading the source --------------------------------------------------------------------------


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


# ---- layers --------------------------------------------------------------------------------------


def test_every_module_has_a_place_in_the_layers() -> None:
    assert {unit(module) for module in MODULES} <= set(ROW_OF)


def test_imports_point_down() -> None:
    upward = [
        str(found)
        for found in ALL_IMPORTS
        if is_ours(found.module)
        and unit(found.module) != importer(found)
        and ROW_OF[unit(found.module)] <= ROW_OF[importer(found)]
    ]
    assert upward == []


def test_imports_of_ours_name_modules_that_exist() -> None:
    missing = [found for found in ALL_IMPORTS if is_ours(found.module) and found.module not in MODULES]
    assert [str(found) for found in missing] == []


def test_layers_know_nothing_of_what_is_foreign_to_them() -> None:
    intruders = [
        str(found) for found in ALL_IMPORTS if found.module.split(".")[0] in FOREIGN_TO.get(importer(found), set())
    ]
    assert intruders == []


def test_no_import_cycles() -> None:
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
    files = [file for folder in (PACKAGE, "tests", "examples", ".ci") for file in sources(ROOT / folder)]
    found = [one for file in files for one in imports_of(file)]
    assert [str(one) for one in found if one.module.split(".")[0] == "wrappers"] == []


# ---- the reader itself ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "module", "eager"),
    [
        ("import os.path", "os.path", True),
        ("from parallel_envs import errors", "parallel_envs.errors", True),
        ("from parallel_envs.errors import EnvError", "parallel_envs.errors", True),
        ("from . import errors", "parallel_envs.errors", True),
        ("from .errors import EnvError", "parallel_envs.errors", True),
        ("class A:\n    import os", "os", True),
        ("def f():\n    import os", "os", False),
        ("if TYPE_CHECKING:\n    import os", "os", False),
        ("if typing.TYPE_CHECKING:\n    import os", "os", False),
        ("if sys.platform == 'linux':\n    import os", "os", True),
    ],
)
def test_import_statements_are_read(statement: str, module: str, eager: bool) -> None:
    [(node, found_eager)] = import_nodes(ast.parse(statement), eager=True)
    assert named_modules(node, ROOT / PACKAGE / "seeding.py") == [module]
    assert found_eager is eager


def test_cycles_are_found() -> None:
    assert cycle_in({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert cycle_in({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["a", "b", "c"]


# ---- public names --------------------------------------------------------------------------------


def public_modules() -> list[str]:
    """The package and what stands directly in it; nothing that starts with an underscore."""
    return sorted(name for name in MODULES if name.count(".") <= 1 and "._" not in name)


@pytest.mark.parametrize("name", public_modules())
def test_every_exported_name_resolves(name: str) -> None:
    module = importlib.import_module(name)
    exported = list(getattr(module, "__all__", []))
    assert len(exported) == len(set(exported))
    assert [export for export in exported if not hasattr(module, export)] == []


@pytest.mark.parametrize("name", public_modules())
def test_every_public_name_is_exported(name: str) -> None:
    module = importlib.import_module(name)
    assert public_definitions(module) <= set(getattr(module, "__all__", []))


def public_definitions(module: ModuleType) -> set[str]:
    """Public classes and functions in `module`: its own and, of a package, those it takes from its inside."""
    is_package = hasattr(module, "__path__")

    def belongs(value: Any) -> bool:
        home = getattr(value, "__module__", None) or ""
        return home == module.__name__ or (is_package and home.startswith(f"{module.__name__}."))

    public = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    return {
        name
        for name, value in public.items()
        if (inspect.isclass(value) or inspect.isroutine(value)) and belongs(value)
    }


def test_the_top_level_names_are_these() -> None:
    package = importlib.import_module(PACKAGE)
    assert set(package.__all__) == PUBLIC_NAMES
    assert set(dir(package)) >= PUBLIC_NAMES


def test_a_lazy_package_has_its_modules_too() -> None:
    program = "import parallel_envs.vector as v\nanswer = v.manager.ParallelEnvManager is v.ParallelEnvManager"
    assert in_fresh_interpreter(program)


def test_an_unknown_top_level_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = importlib.import_module(PACKAGE).no_such_name


# ---- what an import brings in --------------------------------------------------------------------


def in_fresh_interpreter(program: str) -> Any:
    """What `program` leaves in `answer`, run by an interpreter that has imported nothing of ours."""
    script = f"import json, sys, time\n{program}\nprint(json.dumps(answer))"
    command, environment = [sys.executable, "-c", script], {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_importing_the_package_brings_in_nothing_else() -> None:
    loaded = set(in_fresh_interpreter("import parallel_envs\nanswer = sorted(sys.modules)"))
    assert {name for name in loaded if is_ours(name)} == {PACKAGE, f"{PACKAGE}.lazy"}
    assert loaded & (HEAVY | FRAMEWORKS | {"numpy", "cloudpickle"}) == set()


def test_the_manager_brings_in_no_heavy_library() -> None:
    program = "import parallel_envs; parallel_envs.ParallelEnvManager\nanswer = sorted(sys.modules)"
    loaded = set(in_fresh_interpreter(program))
    assert f"{PACKAGE}.vector" in loaded
    assert loaded & (HEAVY | {"pettingzoo"}) == set()


def test_groups_bring_in_neither_gymnasium_nor_a_heavy_library() -> None:
    imports = f"import {PACKAGE}; {PACKAGE}.EnvStateManager; import {PACKAGE}.groups.worker_group"
    program = f"{imports}\nanswer = sorted(sys.modules)"
    loaded = set(in_fresh_interpreter(program))
    assert f"{PACKAGE}.groups.manager" in loaded
    assert loaded & (HEAVY | FRAMEWORKS) == set()


def test_multiagent_brings_in_no_heavy_library() -> None:
    program = "import parallel_envs; parallel_envs.MultiAgentEnvManager\nanswer = sorted(sys.modules)"
    loaded = set(in_fresh_interpreter(program))
    assert f"{PACKAGE}.multiagent" in loaded
    assert loaded & (HEAVY | {"pettingzoo"}) == set()


@pytest.mark.parametrize("module", ["rollouts", "policies", "evaluation"])
def test_collecting_brings_in_no_heavy_library(module: str) -> None:
    loaded = set(in_fresh_interpreter(f"import {PACKAGE}.{module}\nanswer = sorted(sys.modules)"))
    assert loaded & (HEAVY | {"pettingzoo"}) == set()


def test_importing_takes_less_than_half_a_second_beyond_gymnasium() -> None:
    # In seconds of CPU, which a busy machine does not stretch; the usual figure is a tenth of the bound.
    program = (
        "import gymnasium.vector\n"
        "start = time.process_time()\n"
        "import parallel_envs; parallel_envs.ParallelEnvManager\n"
        "answer = time.process_time() - start"
    )
    assert in_fresh_interpreter(program) < 0.5


def env_that_tells_its_modules() -> Callable[[], gymnasium.Env[Any, Any]]:
    # Made in a function, so that it travels by value: no worker need import this module, and pytest with it.
    class ModulesEnv(gymnasium.Env[Any, Any]):
        observation_space = gymnasium.spaces.Discrete(2)
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            return 0, {}

        def step(self, action: Any) -> Any:
            return 0, 0.0, False, False, {}

        def modules(self) -> list[str]:
            return sorted(sys.modules)

    return ModulesEnv


@pytest.mark.parametrize("context", ["forkserver", "spawn"])
def test_a_worker_brings_in_no_heavy_library(context: StartMethod) -> None:
    with parallel_envs.ParallelEnvManager([env_that_tells_its_modules()] * 2, context=context) as manager:
        manager.reset(seed=0)
        manager.step(manager.action_space.sample())
        for loaded in manager.call("modules"):
            assert "gymnasium" in loaded
            assert set(loaded) & (HEAVY | {"pettingzoo", "pytest"}) == set()
