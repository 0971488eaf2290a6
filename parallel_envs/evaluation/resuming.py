"""Going on where an evaluation ended early, and files that hold at any moment what is complete."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from parallel_envs.evaluation.checkpoints import CHECKPOINT, DIGEST
from parallel_envs.evaluation.documents import BadDocument, plain
from parallel_envs.evaluation.mistakes import BadEvaluation
from parallel_envs.evaluation.records import EpisodeRecord, EvaluationResult
from parallel_envs.evaluation.work import Key, Order

_log = logging.getLogger(__name__)

_MAY_DIFFER = ("missions", "episodes", "versus")
"""More missions and episodes leave those that were played as they were; `versus` is compared by itself."""
_LEAST_SECONDS, _MOST_SHARE = 1.0, 0.05  # between two writings; of the time that may go into them


def earlier_result(resume: str | Path | EvaluationResult | None) -> EvaluationResult | None:
    """Return the result that is to be resumed. Raises BadEvaluation if the file holds none."""
    return _read(resume) if isinstance(resume, str | Path) else resume


def earlier_records(
    earlier: EvaluationResult | None, where: str, settings: Mapping[str, Any], orders: Iterable[Order]
) -> dict[Key, EpisodeRecord]:
    """Return the records that need not be played again. Raises BadEvaluation if they come from another evaluation.

    Args:
        earlier: The result that is to be resumed, if any.
        where: What errors call it: its file.
        settings: What is asked for now.
        orders: The episodes that are asked for.
    """
    if earlier is None:
        return {}
    _check_same(where, _as_told(earlier.settings), _as_told(settings))
    wanted = {order.key: order.env_seed for order in orders}
    return {record.key: record for record in earlier.episodes if wanted.get(record.key) == record.seed}


def check_nothing_is_lost(
    resume: Path, save: Path, earlier: EvaluationResult, kept: Mapping[Key, EpisodeRecord]
) -> None:
    """Raise BadEvaluation if the file to resume is written over, and holds episodes that are not asked for."""
    lost = sum(record.key not in kept for record in earlier.episodes)
    if lost and save.exists() and resume.samefile(save):
        raise BadEvaluation(
            f"{save} holds {lost:,} episodes that are not asked for now, and would not hold them any more. Ask for all "
            "of its missions and episodes, or save to another file."
        )


def _read(path: str | Path) -> EvaluationResult:
    try:
        return EvaluationResult.from_json(path)
    except BadDocument as error:
        raise BadEvaluation(f"{error} It cannot be resumed.") from error


def _as_told(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as a file tells them."""
    told: dict[str, Any] = json.loads(json.dumps(plain(settings)))
    return told


def _check_same(where: str, earlier: dict[str, Any], asked: dict[str, Any]) -> None:
    _check_policies(where, earlier.get("policies"), asked.get("policies", {}))
    for name, value in asked.items():
        if name not in (*_MAY_DIFFER, "policies") and not _is_same(earlier.get(name), value):
            raise BadEvaluation(_differing(where, name, earlier.get(name), value))
    if (earlier.get("versus", True), asked.get("versus", True)) not in ((True, True), (False, False)):
        how = "share the agents of each episode" if earlier.get("versus", True) else "play one by one"
        raise BadEvaluation(
            f"{where} was made with policies that {how}, and now it is asked for the other way (versus). Its numbers "
            "would not go together with the rest: ask for the same, or begin anew."
        )
    missions = earlier.get("missions")
    if not isinstance(missions, dict):
        raise BadEvaluation(f"{where} has the missions {missions!r}, which are not told by name. It cannot be resumed.")
    for name, mission in asked.get("missions", {}).items():
        if (before := missions.get(name, mission)) != mission:
            raise BadEvaluation(f"{where} has a mission {name!r} that is {before}, and {mission} is asked for.")


def _check_policies(where: str, earlier: Any, asked: Mapping[str, Any]) -> None:
    """Their order counts, too: agents are dealt out by it. Checkpoints were compared when they were copied."""
    is_told = isinstance(earlier, dict) and all(isinstance(one, dict) for one in earlier.values())
    if not is_told or not _is_same(_comparable(earlier, asked), _comparable(asked, earlier)):
        raise BadEvaluation(_differing(where, "policies", earlier, asked))
    for name, one in asked.items():
        if (before := earlier[name].get(DIGEST, one.get(DIGEST))) != one.get(DIGEST):
            raise BadEvaluation(
                f"{where} was made with a policy {name!r} whose code or files were others ({before} and not "
                f"{one.get(DIGEST)}). Its numbers would not go together with the rest: begin anew, or bring back what "
                "was evaluated."
            )


def _comparable(policies: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is to be equal in both, but for digests. With equal digests data may lie at another path: the digest
    is of what lies there."""
    found = {}
    for name, one in policies.items():
        other = others.get(name, {})
        paths = [told.get("data") for told in (one, other)]
        is_same = DIGEST in one and one[DIGEST] == other.get(DIGEST) and all(isinstance(path, str) for path in paths)
        is_there = any(os.path.lexists(str(path)) for path in paths)
        apart = (DIGEST, CHECKPOINT, *(("data",) if is_same and is_there else ()))
        found[name] = {key: part for key, part in one.items() if key not in apart}
    return found


def _differing(where: str, name: str, earlier: Any, asked: Any) -> str:
    return (
        f"{where} was made with {name}={earlier!r}, and {asked!r} is asked for. Its numbers would not go together with "
        "the rest: ask for the same, or begin anew."
    )


def _is_same(earlier: Any, asked: Any) -> bool:
    """Whether they are equal, and in the same order."""
    return bool(earlier == asked) and (not isinstance(asked, dict) or list(earlier) == list(asked))


class NotSaved(OSError):
    """The file that was to hold an evaluation cannot be written. `result` is the evaluation: write it elsewhere."""

    def __init__(self, path: Path, result: EvaluationResult, problem: OSError) -> None:
        super().__init__(f"{path} cannot be written: {problem}. It does not hold all that was played.")
        self.result = result


class Saver:
    """Keeps a file up to date, as often as that costs next to nothing.

    Args:
        path: The file, JSON as `EvaluationResult.to_json` writes it. None: nothing is written.
        result: What is complete now.
    """

    def __init__(self, path: str | Path | None, result: Callable[[], EvaluationResult]) -> None:
        self._path, self._result = None if path is None else Path(path), result
        self._not_before = 0.0
        if self._path is not None:
            check_writable(self._path)

    def noted(self) -> None:
        """Something has become complete."""
        if self._path is None or time.monotonic() < self._not_before:
            return
        began = time.monotonic()
        self.try_to_save(self._result())
        seconds = time.monotonic() - began
        self._not_before = time.monotonic() + max(_LEAST_SECONDS, seconds / _MOST_SHARE)

    def try_to_save(self, result: EvaluationResult) -> None:
        """Write this. If that cannot be done it is logged: there may be room again later."""
        try:
            self.save(result)
        except NotSaved as error:
            _log.warning("%s", str(error))  # the text alone: whoever keeps an error keeps all that its frames hold

    def save(self, result: EvaluationResult) -> None:
        """Write this. Raises NotSaved."""
        if self._path is None:
            return
        try:
            result.to_json(self._path)
        except OSError as error:
            raise NotSaved(self._path, result, error) from error


def check_writable(path: Path) -> None:
    """Raise BadEvaluation if there can be no such file."""
    folder = path.parent
    if path.is_dir() or not folder.is_dir():
        what = "it is a folder" if path.is_dir() else f"there is no folder {folder}"
        raise BadEvaluation(f"{path} cannot be written: {what}.")
    if not os.access(folder, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise BadEvaluation(f"{path} cannot be written: you have no permission to.")
