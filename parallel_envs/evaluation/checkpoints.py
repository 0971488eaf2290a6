"""Choose the checkpoint of each policy once, in the caller, and copy it before any episode is played.

    with holding(candidates, settings_to_resume) as candidates: ...

A run that is still training writes new checkpoints and removes old ones. Workers make their policies at different
times, and again for a second try of an episode. If each of them looked for the newest checkpoint, they would play
different ones. So all read one copy, which is in a temporary folder until the context ends. The result's settings hold
the checkpoint's path and the digest of the copy, and a resumed evaluation takes the same checkpoint.
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
from parallel_envs.policies.specs import TRAINED, located

if TYPE_CHECKING:
    from parallel_envs.evaluation.candidates import Candidate

CHECKPOINT, DIGEST = "checkpoint", "digest"
"""Keys in the description of a policy: the path of its checkpoint, and a short hash of its class and files."""

# The names that `parallel_envs.learners` gives to its files. They repeat learners/run_folder.py and checkpoints.py,
# which this package may not import; a test compares the two.
_RUN, _RUN_FILES = "run.json", ("run.json", "settings.yaml", "chosen.json")
_CHECKPOINTS, _CHECKPOINT, _AGENT = "checkpoints", "checkpoint.json", "agent.json"
_FORMAT = b'"format": "parallel_envs '
_MEMORY = "memory.npz"  # a replay buffer: large, and not needed to act

_MOST_TRIES = 5  # tries, since a run may remove a checkpoint while it is copied


@dataclasses.dataclass(frozen=True, slots=True)
class HeldCheckpoint:
    """A checkpoint that was copied.

    Args:
        path: The original checkpoint, or the original folder of one agent.
        folder: The folder that the user gave as the policy: `path` itself, or the folder of the run.
        copy: The copy of `folder`, which contains only this checkpoint.
        digest: A hash of the copy and of the policy's class (see `digest_of`).
    """

    path: str
    folder: str
    copy: str
    digest: str | None


@contextlib.contextmanager
def holding(candidates: Sequence[Candidate], earlier: Mapping[str, Any] | None = None) -> Iterator[list[Candidate]]:
    """Yield the candidates, each with a copy of its checkpoint. Those without one, or held already, are unchanged.

    Args:
        candidates: The policies.
        earlier: The settings of the result that is resumed. The checkpoints that they name are used.

    Raises BadEvaluation if there is no checkpoint, if it cannot be copied, or if it changed since `earlier`.
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
    """Make the texts of errors name the folder that the user gave, and not its copy."""
    try:
        yield
    except Exception as error:
        if held is not None:
            error.args = tuple(
                one.replace(held.copy, held.folder) if isinstance(one, str) else one for one in error.args
            )
        raise


def _is_of_learners(source: Any) -> bool:
    """Return whether a policy reads a folder that `parallel_envs.learners` wrote. Its class may be any."""
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
    """Return whether the learners wrote this file. The name is not enough: others may write an agent.json, too."""
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
    earlier = _evaluated_before(folder, before)
    path = _copied(folder, None if earlier is None else Path(str(earlier)), name, spec, into)
    digest = digest_of(dataclasses.replace(spec, data_path=str(into)))
    if earlier is not None and before.get(DIGEST) not in (None, digest):
        raise BadEvaluation(
            f"The episodes so far were played by the policy {name!r} of the checkpoint {earlier}, and the checkpoint "
            f"or the code of the policy has changed since ({DIGEST} {before[DIGEST]}, now {digest}). New "
            "episodes could not be compared with them: bring back the old state, or begin anew."
        )
    return HeldCheckpoint(str(path), str(folder), str(into), digest)


def _evaluated_before(folder: Path, before: Mapping[str, Any]) -> str | None:
    """Return the checkpoint that an earlier result names; if that was of another path, the one of the same name.

    The run may have been moved, or named by a path from another working folder. The digest tells whether it is another.
    """
    checkpoint, data = before.get(CHECKPOINT), before.get("data")
    if not isinstance(checkpoint, str) or not isinstance(data, str):
        return None
    if located(data) == located(str(folder)):
        return checkpoint
    same = folder / _CHECKPOINTS / Path(checkpoint).name
    return str(same) if same.is_dir() else None


def _copied(folder: Path, wanted: Path | None, name: str, spec: PolicySpec, into: Path) -> Path:
    """Copy the checkpoint `wanted`, or the newest of a run, and return the path of the original."""
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
                    "gone. New episodes could not be compared with them: bring the checkpoint back, or begin anew."
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
    """Return the newest complete checkpoint of a run, or None."""
    found = [path for path in (run / _CHECKPOINTS).glob("[0-9]*") if path.name.isdecimal()]
    return max(
        (path for path in found if (path / _CHECKPOINT).is_file()), key=lambda path: int(path.name), default=None
    )


def _copy(folder: Path, to: Path, skipped: Sequence[str]) -> None:
    """Copy a folder through its descriptor, so that a folder which replaces it meanwhile is not mixed in."""

    def fail(error: OSError) -> NoReturn:
        raise error

    for inside, _, names, descriptor in os.fwalk(folder, onerror=fail, follow_symlinks=True):
        target = to / os.path.relpath(inside, folder)
        target.mkdir(parents=True)
        for name in (name for name in names if name not in skipped):
            source = os.open(name, os.O_RDONLY, dir_fd=descriptor)
            with open(source, "rb") as original, (target / name).open("xb") as copy:  # noqa: PTH123  # a descriptor
                shutil.copyfileobj(original, copy)
