"""What the site makes from the code: docstrings as pages, tables of settings and results, links, help of commands."""

from __future__ import annotations

import csv
import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.ext.intersphinx import InventoryAdapter
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import make_refnode

RESULTS = Path(__file__).parents[1] / "examples/results"

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
            yield from (".. code-block:: default", "")
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


class ResultsTable(SphinxDirective):
    """Table of what training reached, seed by seed: `{results} cartpole climbing_ppo`, from `figures.csv`."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        sys.path.insert(0, str(RESULTS))
        tools = importlib.import_module("train_seeds")
        with (RESULTS / "figures.csv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        numbers = sorted({int(row["seed"]) for row in rows})
        table = [f"| task | steps | mean | {' | '.join(f'seed {one}' for one in numbers)} | wanted | least minutes |"]
        table.append("|---" * (len(numbers) + 5) + "|")
        for name in " ".join(self.content).split():
            task, own = tools.TASKS[name], {int(row["seed"]): row for row in rows if row["task"] == name}
            reached = [float(own[one]["deterministic"]) for one in numbers]
            cells = [task.title, f"{int(own[0]['steps']):,}", f"**{tools.interval(reached)}**"]
            cells += [f"{one:.2f}" for one in reached]
            cells += [f"{task.wanted:g}", f"{min(float(row['minutes']) for row in own.values()):.1f}"]
            table.append(f"| {' | '.join(cells)} |")
        return self.parse_text_to_nodes("\n".join(table))


class LinkNames(SphinxPostTransform):
    """Make a link of each public name that a page has in code style: `evaluate`, `gymnasium.vector.VectorEnv`.

    A name becomes a link once in each section. The page that describes a name has no links to itself.
    """

    default_priority = 5  # before references are resolved

    def run(self, **_: Any) -> None:
        places = self._places()
        linked: set[tuple[nodes.Node | None, str]] = set()
        for node in list(self.document.findall(nodes.literal)):
            name = node.astext().removesuffix("()")
            name = re.sub(r"^gym\.", "gymnasium.", re.sub(r"^np\.", "numpy.", name))
            if name not in places or _inside(node, nodes.reference, nodes.title, nodes.term):
                continue
            section = next((one for one in _above(node) if isinstance(one, nodes.section)), None)
            if (section, name) in linked:
                continue
            linked.add((section, name))
            page, anchor = places[name]
            if page is None:
                link = nodes.reference("", "", node.deepcopy(), internal=False, refuri=anchor)
            elif page != self.env.docname:
                link = make_refnode(self.app.builder, self.env.docname, page, anchor, node.deepcopy())
            else:
                continue
            node.replace_self(link)

    def _places(self) -> dict[str, tuple[str | None, str]]:
        """Return the page and the anchor of each name; for names of other projects None and the address."""
        places: dict[str, tuple[str | None, str]] = {}
        for kind, found in InventoryAdapter(self.env).main_inventory.items():
            if kind.startswith("py:"):
                for name, item in found.items():
                    places[name] = places[name.rpartition(".")[2]] = (None, item.uri)
        for name in ("Env", "Wrapper", "make", "register", "Module", "Generator", "Tensor"):
            places.pop(name, None)  # words that mean other things, too
        for name, item in self.env.domains.python_domain.objects.items():
            if item.objtype in ("class", "exception", "function") and not item.aliased:
                places[name] = places[name.rpartition(".")[2]] = (item.docname, item.node_id)
        for name in ("register", "Call", "Reply", "Death", "Task", "Rows"):
            places.pop(name, None)
        return places


def _above(node: nodes.Node) -> Iterator[nodes.Node]:
    while (node := node.parent) is not None:
        yield node


def _inside(node: nodes.Node, *kinds: type) -> bool:
    return any(type(one) in kinds for one in _above(node))


def setup(app: Sphinx) -> dict[str, Any]:
    """Register everything with Sphinx."""
    app.connect("autodoc-process-docstring", as_restructured_text, priority=100)  # before napoleon reads it
    app.add_directive("settings", SettingsTable)
    app.add_directive("command-help", CommandHelp)
    app.add_directive("results", ResultsTable)
    app.add_post_transform(LinkNames)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
