"""What stands where in a run's folder, and what it says.

runs/spread/
    settings.yaml        every setting, defaults as well: can be run again as it is
    run.json             seed, versions of packages, machine, when it began
    chosen.json          the update mode that "auto" has found to be the quickest, if it has
    metrics.jsonl        a line for each update, or for each few
    tensorboard/         the same for TensorBoard
    outcome.json         how it ended, and what came of it; not there while it trains, or after a kill
    checkpoints/000051200/  by number of steps; the newest few
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from parallel_envs.files import short_name, write_whole
from parallel_envs.learners.checkpoints import is_checkpoint

SETTINGS, ABOUT, CHOSEN, METRICS = "settings.yaml", "run.json", "chosen.json", "metrics.jsonl"
OUTCOME = "outcome.json"
BOARD, CHECKPOINTS = "tensorboard", "checkpoints"


class BadRun(ValueError):
    """A run cannot be gone on with as it stands. The text says what to do."""


def new_folder_in_runs(env: str, algorithms: Iterable[str], seed: int) -> Path:
    """Make an empty folder for a run and return it: `runs/CartPole-v1_ppo_seed0_20260131-120000`.

    The name says env, algorithms (each once, joined by `+`) and seed. Signs that a file's name should not have become
    `-`, and of a file or module that holds the env only the last part is named. Runs that begin in the same second get
    a number at the end, so that none takes another's folder.
    """
    path, colon, name = env.rpartition(":")
    whole = f"{Path(path).name.removesuffix('.py')}-{name}" if colon else env
    safe = re.sub(r"[^\w.+-]+", "-", whole).strip("-.") or "env"
    learnt = "+".join(dict.fromkeys(algorithms))
    now = datetime.now().astimezone()
    stem = f"{short_name(safe, 150)}_{re.sub(r'[^0-9A-Za-z_.+-]+', '-', learnt)}_seed{seed}_{now:%Y%m%d-%H%M%S}"
    for number in itertools.count(1):
        folder = Path("runs") / (stem if number == 1 else f"{stem}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise AssertionError("itertools.count does not end")


def settings_of(folder: str | Path) -> Path:
    """Where the settings of a run are. FileNotFoundError if there is no run."""
    path = Path(folder) / SETTINGS
    if not path.is_file():
        above = [parent for parent in Path(folder).parents[:2] if (parent / SETTINGS).is_file()]
        hint = f" The run that it is part of is {above[0]}." if above else ""
        raise FileNotFoundError(f"{folder} holds no run: there is no file {SETTINGS} in it.{hint}")
    return path


def write_settings(path: Path, settings: Mapping[str, Any]) -> None:
    import yaml

    text = yaml.safe_dump(dict(settings), sort_keys=False)
    write_whole(path, lambda file: file.write(text.encode()))


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    text = json.dumps(content, indent=2)
    write_whole(path, lambda file: file.write(text.encode()))


# ---- checkpoints ----------------------------------------------------------------------------------------------------


def place_of_checkpoint(folder: Path, steps: int) -> Path:
    return folder / CHECKPOINTS / f"{steps:09}"


def newest_checkpoint(folder: str | Path) -> Path | None:
    """The newest checkpoint of a run, if it has one."""
    found = checkpoints_in(Path(folder))
    return found[-1] if found else None


def checkpoints_in(folder: Path) -> list[Path]:
    """The oldest first."""
    return [path for path in numbered_in(folder) if is_checkpoint(path)]


def numbered_in(folder: Path) -> list[Path]:
    """All that stands in the place of a checkpoint."""
    found = (folder / CHECKPOINTS).glob("[0-9]*")
    return sorted((path for path in found if path.name.isdecimal()), key=lambda path: int(path.name))


def newest_whole(folder: Path) -> Path:
    """The checkpoint to go on from: there is nothing newer that is none.

    Raises BadRun where there is; FileNotFoundError if there is nothing to go on from.
    """
    newest = newest_checkpoint(folder)
    for path in numbered_in(folder):
        if not is_checkpoint(path) and (newest is None or int(path.name) > int(newest.name)):
            raise BadRun(f"{path} is no whole checkpoint, its table is lost. {way_back(folder, path)}")
    if newest is None:
        raise FileNotFoundError(f"{folder} holds no checkpoint yet: begin the run anew in another folder.")
    return newest


def way_back(folder: Path, bad: Path) -> str:
    """What to do about a checkpoint that cannot be read."""
    older = [path for path in checkpoints_in(folder) if int(path.name) < int(bad.name)]
    if not older:
        return "There is no older one to go on from: begin the run anew in another folder."
    return f"Remove {bad} to go on from the one before, {older[-1].name}."
