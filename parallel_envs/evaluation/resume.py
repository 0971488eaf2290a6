"""Resume an evaluation that ended early, and keep its results file up to date while episodes are played."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from parallel_envs.evaluation.checkpoints import CHECKPOINT, DIGEST
from parallel_envs.evaluation.config import BadEvaluation
from parallel_envs.evaluation.episode import EpisodeSpec
from parallel_envs.evaluation.records import BadDocument, EpisodeKey, EpisodeRecord, EvaluationResult, plain

_log = logging.getLogger(__name__)

_MAY_DIFFER = ("missions", "episodes", "versus")
"""Settings that are not compared as a whole: more missions and episodes do not change the episodes so far, and `versus`
has a check of its own."""
_LEAST_SECONDS, _MOST_SHARE = 1.0, 0.05  # between two writings; the share of the time that they may take


def earlier_result(resume: str | Path | EvaluationResult | None) -> EvaluationResult | None:
    """Return the result to resume. Raises BadEvaluation if the file does not hold one."""
    if not isinstance(resume, str | Path):
        return resume
    try:
        return EvaluationResult.from_json(resume)
    except BadDocument as error:
        raise BadEvaluation(f"{error} It cannot be resumed.") from error


def earlier_records(
    earlier: EvaluationResult | None, where: str, settings: Mapping[str, Any], specs: Iterable[EpisodeSpec]
) -> dict[EpisodeKey, EpisodeRecord]:
    """Return the records that need not be played again. Raises BadEvaluation if they come from another evaluation.

    `settings` and `specs` are requested now. `where` is the name of the earlier result in errors.
    """
    if earlier is None:
        return {}
    before, now = (json.loads(json.dumps(plain(one))) for one in (earlier.settings, settings))  # as files hold them
    _check_same(where, before, now)
    wanted = {spec.key: spec.env_seed for spec in specs}
    return {record.key: record for record in earlier.episodes if wanted.get(record.key) == record.seed}


def check_nothing_is_lost(
    resume: Path, save: Path, earlier: EvaluationResult, kept: Mapping[EpisodeKey, EpisodeRecord]
) -> None:
    """Raise BadEvaluation if the file to resume would be replaced, and has episodes that are not requested."""
    lost = sum(record.key not in kept for record in earlier.episodes)
    if lost and save.exists() and resume.samefile(save):
        raise BadEvaluation(
            f"{save} holds {lost:,} episodes that are not requested now, and would lose them. Request all of its "
            "missions and episodes, or save to another file."
        )


def _check_same(where: str, earlier: dict[str, Any], now: dict[str, Any]) -> None:
    """Raise BadEvaluation if the numbers of an earlier result depend on other settings."""

    def check(name: str, before: Any, requested: Any, is_same: bool) -> None:
        if not is_same:
            raise BadEvaluation(
                f"{where} was made with {name}={before!r}, and {requested!r} is requested. Its numbers would not be "
                "comparable with the rest: give the old value, or start a new evaluation."
            )

    policies: Any = earlier.get("policies")
    requested: Any = now.get("policies", {})
    is_dict = isinstance(policies, dict) and all(isinstance(one, dict) for one in policies.values())
    # Their order counts, too: agents are dealt out by it. Checkpoints were compared when they were copied.
    same = is_dict and _is_same(_comparable(policies, requested), _comparable(requested, policies))
    check("policies", policies, requested, same)
    for name, one in requested.items():
        if (before := policies[name].get(DIGEST, one.get(DIGEST))) != one.get(DIGEST):
            raise BadEvaluation(
                f"{where} was made with a policy {name!r} whose code or files have changed since ({before} and not "
                f"{one.get(DIGEST)}). Its numbers would not be comparable with the rest: restore the old policy, or "
                "start a new evaluation."
            )
    for name, value in now.items():
        if name not in (*_MAY_DIFFER, "policies"):
            check(name, earlier.get(name), value, _is_same(earlier.get(name), value))
    if (earlier.get("versus", True), now.get("versus", True)) not in ((True, True), (False, False)):
        how = "share the agents of each episode" if earlier.get("versus", True) else "play one by one"
        raise BadEvaluation(
            f"{where} was made with policies that {how}, and now the opposite is requested (versus). Its numbers would "
            "not be comparable with the rest: give the old value, or start a new evaluation."
        )
    missions = earlier.get("missions")
    if not isinstance(missions, dict):
        raise BadEvaluation(
            f"{where} has the missions {missions!r}, which is not a dict by name. It cannot be resumed."
        )
    for name, mission in now.get("missions", {}).items():
        if (before := missions.get(name, mission)) != mission:
            raise BadEvaluation(f"{where} has a mission {name!r} that is {before}, and {mission} is requested.")


def _comparable(policies: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Return what must be equal in both, except digests. With equal digests the data may be at another path."""
    found = {}
    for name, one in policies.items():
        other = others.get(name, {})
        paths = [settings.get("data") for settings in (one, other)]
        is_same = DIGEST in one and one[DIGEST] == other.get(DIGEST) and all(isinstance(path, str) for path in paths)
        is_there = any(os.path.lexists(str(path)) for path in paths)
        skipped = (DIGEST, CHECKPOINT, *(("data",) if is_same and is_there else ()))
        found[name] = {key: part for key, part in one.items() if key not in skipped}
    return found


def _is_same(earlier: Any, now: Any) -> bool:
    """Return whether two values are equal, and dicts in the same order."""
    return bool(earlier == now) and (not isinstance(now, dict) or list(earlier) == list(now))


class NotSaved(OSError):
    """The file that was to hold an evaluation cannot be written. `result` is the evaluation: write it elsewhere."""

    def __init__(self, path: Path, result: EvaluationResult, problem: OSError) -> None:
        super().__init__(f"{path} cannot be written: {problem}. It does not hold all that was played.")
        self.result = result


class ResultSaver:
    """Writes a results file while episodes are played, as often as that takes little time. No path: does nothing.

    `result` returns the result of the episodes that are complete now.
    """

    def __init__(self, path: str | Path | None, result: Callable[[], EvaluationResult]) -> None:
        self._path, self._result = None if path is None else Path(path), result
        self._not_before = 0.0
        if self._path is not None:
            check_writable(self._path)

    def note(self) -> None:
        """Write the file after an episode, unless it was written a moment ago."""
        if self._path is None or time.monotonic() < self._not_before:
            return
        began = time.monotonic()
        self.try_to_save(self._result())
        seconds = time.monotonic() - began
        self._not_before = time.monotonic() + max(_LEAST_SECONDS, seconds / _MOST_SHARE)

    def try_to_save(self, result: EvaluationResult) -> None:
        """Write the file. Log an error: there may be space again later."""
        try:
            self.save(result)
        except NotSaved as error:
            _log.warning("%s", str(error))  # only the text: a handler that keeps the error would keep its frames

    def save(self, result: EvaluationResult) -> None:
        """Write the file. Raises NotSaved."""
        if self._path is None:
            return
        try:
            result.to_json(self._path)
        except OSError as error:
            raise NotSaved(self._path, result, error) from error


def check_writable(path: Path) -> None:
    """Raise BadEvaluation if the file cannot be written."""
    folder = path.parent
    if path.is_dir() or not folder.is_dir():
        what = "it is a folder" if path.is_dir() else f"there is no folder {folder}"
        raise BadEvaluation(f"{path} cannot be written: {what}. Name another file.")
    if not os.access(folder, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise BadEvaluation(f"{path} cannot be written: you have no permission. Name another file.")
