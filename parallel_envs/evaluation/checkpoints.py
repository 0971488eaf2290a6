"""The checkpoint that an evaluation plays with: chosen once, by the caller, and copied before anything is played.

    with holding(candidates, settings_to_resume) as candidates: ...

A run that is still training writes newer checkpoints and removes old ones. Workers, and second tries of an episode,
make their policies at different times, so none of them may look for the newest checkpoint itself. They all read the
copy, which lives in a temporary folder for as long as the context lasts. The result's settings name the checkpoint by
its path and by the digest of the copy, and an evaluation that is resumed takes the checkpoint that is named there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from parallel_envs.evaluation.digests import digest_of
from parallel_envs.evaluation.mistakes import BadEvaluation
from parallel_envs.extras import require
from parallel_envs.policies import PolicySpec
from parallel_envs.policies.specs import TRAINED

if TYPE_CHECKING:
    from parallel_envs.evaluation.candidates import Candidate

CHECKPOINT, DIGEST = "checkpoint", "digest"
"""In what describes a policy: the path of its checkpoint; what the policy is made of, in a few letters."""

# How `parallel_envs.learners` lays out its folders (learners/run_folder.py and checkpoints.py, which this room may not
# import: a test compares the two).
_RUN, _RUN_FILES = "run.json", ("run.json", "settings.yaml", "chosen.json")
_CHECKPOINTS, _CHECKPOINT, _AGENT = "checkpoints", "checkpoint.json", "agent.json"
_FORMAT = b'"format": "parallel_envs '
_MEMORY = "memory.npz"  # a replay buffer: large, and no policy acts by it

_MOST_TRIES = 5  # how often the newest checkpoint may be removed while it is copied


@dataclasses.dataclass(frozen=True, slots=True)
class HeldCheckpoint:
    """A checkpoint that was copied.

    Args:
        path: The checkpoint, or the folder of one agent, by the path that the user knows.
        folder: The folder that the policy was given by: the path itself, or the run's.
        copy: The copy of that folder, with this one checkpoint in it.
        digest: What the copy and the policy's class are made of (see `digest_of`).
    """

    path: str
    folder: str
    copy: str
    digest: str | None


@contextlib.contextmanager
def holding(candidates: Sequence[Candidate], earlier: Mapping[str, Any] | None = None) -> Iterator[list[Candidate]]:
    """Give the candidates, each with a copy of its checkpoint; those that have none, or are held already, as they are.

    Args:
        candidates: The policies.
        earlier: The settings of the result that is to be resumed: the checkpoints that they name are taken.

    Raises BadEvaluation if there is no checkpoint, or it cannot be copied, or is not the one that was evaluated before.
    """
    told = (earlier or {}).get("policies")
    before = told if isinstance(told, Mapping) else {}
    with contextlib.ExitStack() as stack:
        held = []
        for place, candidate in enumerate(candidates):
            if candidate.held is None and _is_of_learners(candidate.source):
                if _is_by_learners(candidate.source):
                    require(f"The policy {candidate.name!r}", "torch", "safetensors")
                folder = stack.enter_context(_temporary_folder()) / str(place)
                known = before.get(candidate.name)
                copied = _hold(candidate.name, candidate.source, known if isinstance(known, Mapping) else {}, folder)
                candidate = dataclasses.replace(candidate, held=copied)  # noqa: PLW2901  # the same one, held
            held.append(candidate)
        yield held


@contextlib.contextmanager
def named_as_given(held: HeldCheckpoint | None) -> Iterator[None]:
    """Have the texts of errors name the folder that the user gave instead of its copy."""
    try:
        yield
    except Exception as error:
        if held is not None:
            error.args = tuple(
                one.replace(held.copy, held.folder) if isinstance(one, str) else one for one in error.args
            )
        raise


def _is_of_learners(source: Any) -> bool:
    """Return whether a policy is made from a folder of `parallel_envs.learners`, by whatever class."""
    if not isinstance(source, PolicySpec) or source.data_path is None:
        return False
    folder = Path(source.data_path)
    if (folder / _RUN).is_file():
        newest = _newest(folder)
        return _is_by_learners(source) if newest is None else _is_written_by_learners(newest / _CHECKPOINT)
    return any(_is_written_by_learners(folder / name) for name in (_CHECKPOINT, _AGENT))


def _is_by_learners(spec: PolicySpec) -> bool:
    return spec.class_path.partition(":")[0] == TRAINED.partition(":")[0]


def _is_written_by_learners(file: Path) -> bool:
    """Return whether the file begins as learners write it. Others too call their files agent.json."""
    try:
        with file.open("rb") as opened:
            return _FORMAT in opened.read(100)
    except OSError:
        return False


@contextlib.contextmanager
def _temporary_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="parallel-envs-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def _hold(name: str, spec: PolicySpec, before: Mapping[str, Any], into: Path) -> HeldCheckpoint:
    """Copy the policy's checkpoint into a folder that does not exist yet."""
    folder = Path(str(spec.data_path))
    earlier = before.get(CHECKPOINT) if before.get("data") == spec.data_path else None
    path = _copied(folder, None if earlier is None else Path(str(earlier)), name, spec, into)
    digest = digest_of(dataclasses.replace(spec, data_path=str(into)))
    if earlier is not None and before.get(DIGEST) not in (None, digest):
        raise BadEvaluation(
            f"The episodes so far were played by the policy {name!r} of the checkpoint {earlier}, and the checkpoint "
            f"or the code of the policy has changed since ({DIGEST} {before[DIGEST]}, now {digest}). The rest would "
            "not go together with them: bring back what was evaluated, or begin anew."
        )
    return HeldCheckpoint(str(path), str(folder), str(into), digest)


def _copied(folder: Path, wanted: Path | None, name: str, spec: PolicySpec, into: Path) -> Path:
    """Copy a checkpoint, the newest of a run unless one is wanted. Returns where it was."""
    is_run = (folder / _RUN).is_file()
    skipped = (_MEMORY,) if _is_by_learners(spec) else ()
    for tries in range(1, _MOST_TRIES + 1):
        path = wanted if wanted is not None else _newest(folder) if is_run else folder
        if path is None:
            raise BadEvaluation(
                f"The run {folder} of the policy {name!r} has no checkpoint yet. Evaluate it when its training has "
                "written one."
            )
        try:
            if is_run:
                into.mkdir()
                for file in _RUN_FILES:
                    if (folder / file).is_file():
                        shutil.copyfile(folder / file, into / file)
                _copy(path, into / _CHECKPOINTS / path.name, skipped)
            else:
                _copy(path, into, skipped)
            return path
        except FileNotFoundError:
            shutil.rmtree(into, ignore_errors=True)
            if wanted is not None:
                raise BadEvaluation(
                    f"The episodes so far were played by the policy {name!r} of the checkpoint {wanted}, which is "
                    "gone. The rest would not go together with them: bring the checkpoint back, or begin anew."
                ) from None
            if not is_run or tries == _MOST_TRIES:
                raise BadEvaluation(
                    f"The checkpoint {path} of the policy {name!r} was removed while it was copied. Have its training "
                    "keep more checkpoints (keep_checkpoints), and evaluate again."
                ) from None
        except OSError as error:
            raise BadEvaluation(f"The checkpoint {path} of the policy {name!r} cannot be copied: {error}.") from error
    raise AssertionError("the last try returns or raises")


def _newest(run: Path) -> Path | None:
    """Return the newest whole checkpoint of a run."""
    found = [path for path in (run / _CHECKPOINTS).glob("[0-9]*") if path.name.isdecimal()]
    return max(
        (path for path in found if (path / _CHECKPOINT).is_file()), key=lambda path: int(path.name), default=None
    )


def _copy(folder: Path, to: Path, skipped: Sequence[str]) -> None:
    """Copy a folder, read by its descriptor: if another is put in its place meanwhile, the two are not mixed."""

    def fail(error: OSError) -> NoReturn:
        raise error

    for inside, _, names, descriptor in os.fwalk(folder, onerror=fail, follow_symlinks=True):
        target = to / os.path.relpath(inside, folder)
        target.mkdir(parents=True)
        for name in (name for name in names if name not in skipped):
            source = os.open(name, os.O_RDONLY, dir_fd=descriptor)
            with open(source, "rb") as original, (target / name).open("xb") as copy:  # noqa: PTH123  # a descriptor
                shutil.copyfileobj(original, copy)
