"""Evaluations as text: JSON and YAML with everything, CSV with a row for each episode, tables to read."""

from __future__ import annotations

import csv
import html
import io
import json
from pathlib import Path
from typing import Any

import yaml

from parallel_envs.evaluation.documents import BadDocument, document_of, plain, result_of
from parallel_envs.evaluation.records import EpisodeRecord, EvaluationResult
from parallel_envs.files import write_whole

_COLUMNS = (
    "mission",
    "episode",
    "seed",
    "score",
    "success",
    "length",
    "late",
    "attempts",
    "seconds",
    "failure",
    "error",
    "policy",
)


def to_json(result: EvaluationResult) -> str:
    """Everything but trajectories; `from_json` makes the same evaluation of it."""
    return json.dumps(document_of(result), indent=2, allow_nan=False) + "\n"


def to_yaml(result: EvaluationResult) -> str:
    """The same as YAML."""
    text: str = yaml.safe_dump(document_of(result), sort_keys=False, allow_unicode=True, width=120)
    return text


def to_csv(result: EvaluationResult) -> str:
    """A row for each episode: what is known of it, then a policy, a return and late actions for each agent.

    In the column `policy` is the policy that all agents had, or "mixed".
    """
    agents = list(dict.fromkeys(str(agent) for record in result.episodes for agent in _agents(record)))
    columns = [*_COLUMNS, *(f"{what}:{agent}" for agent in agents for what in ("policy", "return", "timeouts"))]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(map(_row, result.episodes))
    return text.getvalue()


def to_table(result: EvaluationResult, width: int = 120) -> str:
    """Missions and policies as tables to read, in plain text."""
    from rich.console import Console

    from parallel_envs.evaluation.tables import tables

    text = io.StringIO()
    console = Console(file=text, width=width, color_system=None)
    for part in tables(result):
        console.print(part)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


def to_html(result: EvaluationResult) -> str:
    """The same as HTML, for notebooks."""
    from parallel_envs.evaluation.tables import figures_of, remarks

    heads, rows = figures_of(result)
    head = "".join(f"<th>{html.escape(name)}</th>" for name in heads)
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    told = "".join(f"<pre>{html.escape(text.plain)}</pre>" for text in remarks(result))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{told}"


def from_json(path: str | Path) -> EvaluationResult:
    """What `to_json` wrote to a file. Raises BadDocument, naming the file, if it holds something else."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise BadDocument(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise BadDocument(
            f"{path} is not JSON ({error}). Give a file that `parallel-envs eval --output` wrote."
        ) from error
    return result_of(document, str(path))


def write(path: str | Path, text: str) -> None:
    """A file that holds the text, whole or not at all."""
    write_whole(Path(path), lambda file: file.write(text.encode()))


def _row(record: EpisodeRecord) -> dict[str, Any]:
    failure = record.failure
    row = {name: getattr(record, name) for name in _COLUMNS if hasattr(record, name)}
    row |= (
        {"failure": failure.kind, "error": f"{failure.error_type}: {failure.message}"} if failure else {"failure": ""}
    )
    named = list(dict.fromkeys(record.assignment.values()))
    row["policy"] = "mixed" if record.mixed else record.alone or next(iter(named), "")
    for agent in _agents(record):
        row |= {
            f"policy:{agent}": record.assignment.get(agent),
            f"return:{agent}": None if failure else record.returns.get(agent),
            f"timeouts:{agent}": record.timeouts.get(agent, 0),
        }
    return {name: "" if value is None else plain(value) for name, value in row.items()}


def _agents(record: EpisodeRecord) -> list[Any]:
    return list(dict.fromkeys([*record.assignment, *record.returns]))
