"""What the site makes from the code: docstrings as pages, tables of settings, the help of commands."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

SECTIONS = re.compile(r"^(Args|Attributes|Returns|Raises|Yields|Example|Examples|Note|Warning):$")


def as_restructured_text(app: Sphinx, kind: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Turn a docstring as it is written here (text, `code`, indented examples) into reStructuredText, in place."""
    lines[:] = list(_converted(lines))


def _converted(lines: list[str]) -> Iterator[str]:
    in_section = in_code = False
    for number, line in enumerate(lines):
        before = lines[number - 1] if number else ""
        if line and not line.startswith(" "):
            in_section, in_code = bool(SECTIONS.match(line)), False
        if not in_section and not in_code and line.startswith("    ") and not before.strip() and number:
            in_code = True
            yield from ("::", "")
        if in_code:
            yield line
        else:
            yield re.sub(
                r"(?<!`)`([^`]+)`(?!`)(?=(\w?))", lambda match: f"``{match[1]}``" + ("\\ " if match[2] else ""), line
            )


class SettingsTable(SphinxDirective):
    """Table of the fields of a settings class: `{settings} parallel_envs.learners.config:TrainingConfig`."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        from parallel_envs.settings import Field, fields_of, type_text

        module, _, name = self.arguments[0].partition(":")
        kind = getattr(importlib.import_module(module), name)
        rows = ["| setting | type | default | meaning |", "|---|---|---|---|"]
        for field in fields_of(kind):
            default = "required" if field.default is Field.required else f"`{field.default!r}`"
            rows.append(f"| `{field.name}` | {type_text(field.hint)} | {default} | {field.text} |".replace("\n", " "))
        made = self.parse_text_to_nodes("\n".join(rows))
        for table in made:
            if isinstance(table, nodes.table):
                table["classes"].append("settings")
        return made


class CommandHelp(SphinxDirective):
    """The whole help of a command of `parallel-envs`, as the terminal shows it: `{command-help} train`."""

    optional_arguments = 3

    def run(self) -> list[nodes.Node]:
        from typer.testing import CliRunner

        from parallel_envs.cli import app

        shown = CliRunner().invoke(app, [*self.arguments, "--help-all"], env={"COLUMNS": "100"}, terminal_width=100)
        return [nodes.literal_block(shown.output, shown.output, language="text")]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register everything with Sphinx."""
    app.connect("autodoc-process-docstring", as_restructured_text, priority=100)  # before napoleon reads it
    app.add_directive("settings", SettingsTable)
    app.add_directive("command-help", CommandHelp)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
