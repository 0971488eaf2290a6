"""README and docs: every block of code runs and prints what is shown below it, commands too; named files exist."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
import typer.core
import typer.main

import parallel_envs
from parallel_envs.cli import app

ROOT = Path(__file__).parents[2]
PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in [
        ROOT / "README.md",
        ROOT / "benchmarks/README.md",
        ROOT / "tests/README.md",
        ROOT / "CONTRIBUTING.md",
        *ROOT.glob("docs/**/*.md"),
    ]
    if path.exists()
}
ONE_BLOCK = r"((?:(?!```)[^\n]*\n)*)"
CODE = re.compile(rf"^```python\n{ONE_BLOCK}```\n(?:\n```\n{ONE_BLOCK}```)?$", re.MULTILINE)
COMMAND = re.compile(r"^```bash\n\.venv/bin/parallel-envs ([^\n]*)\n```\n\n```\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMANDS = re.compile(
    r"^(?:\.venv/bin/)?(parallel-envs|python -m parallel_envs(?:\.bench)?) +([^\n]+?)(?: +#.*)?$", re.MULTILINE
)
RUN_BEFORE = {
    "checkpoints": "train examples/simple_spread.yaml seed=1 folder=runs/spread total_steps=4000 tensorboard=false"
}
"""By a word in a block of code: the command that makes what it needs."""
RATE = re.compile(r"[\d,]+ steps/s")  # the one figure on these pages that differs from machine to machine


TRAINS = re.compile(r"\.train\(|\bbegin\(|\bLearner\(|/checkpoints")  # takes five times as long as other blocks


def cases(pattern: re.Pattern[str]) -> list[object]:
    found = [(page, match) for page, text in PAGES.items() for match in pattern.findall(text)]
    slow = [[pytest.mark.slow] * (page != "README.md" and bool(TRAINS.search(match[0]))) for page, match in found]
    return [
        pytest.param(*match, id=f"{page}-{number}", marks=slow[number]) for number, (page, match) in enumerate(found)
    ]


def test_pages_have_something_to_run() -> None:
    assert len(cases(CODE)) >= 18
    assert len(COMMANDS.findall("".join(PAGES.values()))) >= 12
    assert cases(COMMAND)
    assert PAGES["README.md"].index("```python") == PAGES["README.md"].index("```"), "the README begins with code"


@pytest.mark.parametrize(("code", "output"), cases(CODE))
def test_code_prints_what_is_shown_below_it(code: str, output: str, tmp_path: Path) -> None:
    if "stable_baselines3" in code or "parallel_envs.integrations" in code:
        pytest.importorskip("stable_baselines3")  # the gate runs these blocks where it is installed
    for command in [command for word, command in RUN_BEFORE.items() if word in code]:
        (tmp_path / "examples").symlink_to(ROOT / "examples")
        first = [sys.executable, "-m", "parallel_envs", *shlex.split(command)]
        subprocess.run(first, cwd=tmp_path, check=True, capture_output=True)
    script = tmp_path / "shown.py"
    script.write_text(code, encoding="utf-8")
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (RATE.sub("N steps/s", ran.stdout), ran.stderr) == (RATE.sub("N steps/s", output), "")


@pytest.mark.parametrize(("words", "output"), cases(COMMAND))
def test_a_command_prints_what_is_shown_below_it(words: str, output: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "parallel_envs", *shlex.split(words)]
    wide = {name: value for name, value in os.environ.items() if name != "COLUMNS"}  # readline sets it behind pytest
    ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False, env=wide)
    assert (ran.returncode, ran.stdout) == (0, output), ran.stderr


@pytest.mark.parametrize("page", PAGES)
def test_commands_have_the_options_that_a_page_shows(page: str) -> None:
    """What a block shows as a command is read as a command, and the settings of `train` are settings. Nothing runs."""
    for block in re.findall(r"^```bash\n(.*?)^```$", PAGES[page], re.DOTALL | re.MULTILINE):
        for program, words in COMMANDS.findall(re.sub(r"\\\n\s*", "", block)):
            command: Any = typer.main.get_command(app)
            arguments = [*(["bench"] if program.endswith("bench") else []), *shlex.split(words)]
            while isinstance(command, typer.core.TyperGroup):
                name, *arguments = arguments
                command = command.commands[name]
            parameters = command.make_context(name, arguments).params
            given = [] if parameters.get("resume") else parameters.get("words") or []
            files = [word for word in given if word.endswith(".yaml")]
            if given and not any("/meta/" in file for file in files):
                pytest.importorskip("torch")
                importlib.import_module("parallel_envs.learners.config").load_settings(
                    *[ROOT / file for file in files] or [None], [word for word in given if word not in files]
                )


@pytest.mark.parametrize("page", PAGES)
def test_every_python_block_is_python(page: str) -> None:
    for code in re.findall(r"^```python\n(.*?)^```$", PAGES[page], re.DOTALL | re.MULTILINE):
        compile(code, page, "exec")


MEANT_BY = {
    "envs": (parallel_envs.ParallelEnvManager, parallel_envs.MultiAgentEnvManager),
    "manager": (parallel_envs.EnvStateManager, parallel_envs.ParallelEnvManager),
    "policy": (parallel_envs.WrappedMultiAgentPolicy,),
}
"""What the names that pages use in their text stand for."""


@pytest.mark.parametrize("page", PAGES)
def test_calls_in_the_text_have_the_names_of_the_code(page: str) -> None:
    """`envs.recv(min_envs=4)` in a table: the method exists, and so does the argument."""
    text = re.sub(r"^```.*?^```$", "", PAGES[page], flags=re.DOTALL | re.MULTILINE)
    for code in set(re.findall(r"`([^`\n]+)`", text)):
        try:
            calls = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
        except SyntaxError:
            continue
        for call in calls:
            called: list[Any] = []
            match call.func:
                case ast.Name(id=name) if name in parallel_envs.__all__ and name[0].isupper():
                    called = [getattr(parallel_envs, name)]
                case ast.Attribute(value=ast.Name(id=name), attr=method) if name in MEANT_BY:
                    called = [getattr(kind, method) for kind in MEANT_BY[name] if hasattr(kind, method)]
                    assert called, code
            known = [inspect.signature(one).parameters for one in called]
            given = {keyword.arg for keyword in call.keywords} - {None}
            fits = [
                own for own in known if given <= set(own) or any(one.kind is one.VAR_KEYWORD for one in own.values())
            ]
            assert fits or not known, code


@pytest.mark.parametrize("page", PAGES)
def test_files_and_links_lead_somewhere(page: str) -> None:
    for name in set(re.findall(r"`((?:tests|examples|parallel_envs|benchmarks|docs)/[\w/.]+)`", PAGES[page])):
        assert (ROOT / name).exists(), name
    for name in set(re.findall(r"`([a-z_]+/[\w/]+\.py)`", PAGES[page])):
        assert (ROOT / name).exists() or (ROOT / "parallel_envs" / name).exists(), name
    for target in set(re.findall(r"\]\((?!https?:)([^)#]+)\)", PAGES[page])):
        assert ((ROOT / page).parent / target).exists(), target


def test_the_readme_is_short() -> None:
    assert len(PAGES["README.md"].encode()) <= 9 * 1024
