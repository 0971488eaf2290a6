"""Checkpoints and fingerprints of policies: an evaluation uses one state of each policy, and notices a change.

    with held_checkpoints(candidates, settings_to_resume) as candidates: ...
    fingerprint(source)

A run that is still training writes new checkpoints and removes old ones. Workers make their policies at different
times, and again for a second attempt at an episode. If each worker looked for the newest checkpoint, workers would play
different ones. So the caller chooses the checkpoint of each policy once and copies it into a temporary folder before
any episode is played, and all workers read the copy. The result's settings hold the checkpoint's path and the
fingerprint of the copy, and a resumed evaluation takes the same checkpoint.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import importlib.util
import inspect
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, NoReturn

from parallel_envs.evaluation.config import BadEvaluation
from parallel_envs.extras import require
from parallel_envs.policies import PolicySpec
from parallel_envs.policies.specs import TRAINED, located

if TYPE_CHECKING:
    from parallel_envs.evaluation.policies import Candidate

CHECKPOINT, DIGEST = "checkpoint", "digest"
"""Keys in the description of a policy: the path of its checkpoint, and its fingerprint."""

# File names that `parallel_envs.learners` writes. They repeat learners/run_folder.py and checkpoints.py, which this
# package may not import; a test compares the two.
_RUN, _RUN_FILES = "run.json", ("run.json", "settings.yaml", "chosen.json")
_CHECKPOINTS, _CHECKPOINT, _AGENT = "checkpoints", "checkpoint.json", "agent.json"
_FORMAT = b'"format": "parallel_envs '
_MEMORY = "memory.npz"  # a replay buffer: large, and not needed to act

_MAX_TRIES = 5  # a run may remove a checkpoint while it is copied


# ---- checkpoints ----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class HeldCheckpoint:
    """A copy of a checkpoint."""

    path: str  # the original checkpoint, or the original folder of one agent
    folder: str  # the folder that the user gave as the policy: `path` itself, or the folder of the run
    copy: str  # the copy of `folder`, which contains only this checkpoint
    digest: str | None  # the fingerprint of the copy and of the policy's class


@contextlib.contextmanager
def held_checkpoints(
    candidates: Sequence[Candidate], earlier: Mapping[str, Any] | None = None
) -> Iterator[list[Candidate]]:
    """Yield the candidates, each with a copy of its checkpoint. Candidates without one, or with a copy, are unchanged.

    The checkpoints that `earlier` names, the settings of a result to resume, are used again. Raises BadEvaluation if
    there is no checkpoint, if it cannot be copied, or if it has changed since.
    """
    policies = (earlier or {}).get("policies")
    with contextlib.ExitStack() as stack:
        held = []
        for place, candidate in enumerate(candidates):
            source = candidate.source
            if candidate.held is None and isinstance(source, PolicySpec) and _reads_learners_folder(source):
                if _is_learners_class(source):
                    require(f"The policy {candidate.name!r}", "torch", "safetensors")
                temporary = tempfile.TemporaryDirectory(prefix="parallel-envs-", ignore_cleanup_errors=True)
                into = Path(stack.enter_context(temporary)) / str(place)
                before = policies.get(candidate.name) if isinstance(policies, Mapping) else None
                copied = _hold(candidate.name, source, before if isinstance(before, Mapping) else {}, into)
                candidate = dataclasses.replace(candidate, held=copied)  # noqa: PLW2901  # adds the copy
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


def _reads_learners_folder(spec: PolicySpec) -> bool:
    """Return whether a policy, of whatever class, reads a folder that `parallel_envs.learners` wrote."""
    if spec.data_path is None:
        return False
    folder = Path(spec.data_path)
    if (folder / _RUN).is_file():
        newest = _newest(folder)
        return _is_learners_class(spec) if newest is None else _is_learners_file(newest / _CHECKPOINT)
    return any(_is_learners_file(folder / name) for name in (_CHECKPOINT, _AGENT))


def _is_learners_class(spec: PolicySpec) -> bool:
    return spec.class_path.partition(":")[0] == TRAINED.partition(":")[0]


def _is_learners_file(file: Path) -> bool:
    """Return whether the learners wrote this file. The name is not enough: others may write an agent.json, too."""
    try:
        with file.open("rb") as opened:
            return _FORMAT in opened.read(100)
    except OSError:
        return False


def _hold(name: str, spec: PolicySpec, before: Mapping[str, Any], into: Path) -> HeldCheckpoint:
    """Copy the policy's checkpoint into a folder that does not exist yet. `before`: the policy in an earlier result."""
    folder = Path(str(spec.data_path))
    earlier, data = before.get(CHECKPOINT), before.get("data")
    if not isinstance(earlier, str) or not isinstance(data, str):
        earlier = None
    elif located(data) != located(str(folder)):
        # The run may have been moved, or named by a path from another working folder: take its checkpoint of the same
        # name. The digest tells whether it is another one.
        moved = folder / _CHECKPOINTS / Path(earlier).name
        earlier = str(moved) if moved.is_dir() else None
    path = _copied(folder, None if earlier is None else Path(earlier), name, spec, into)
    digest = fingerprint(dataclasses.replace(spec, data_path=str(into)))
    if earlier is not None and before.get(DIGEST) not in (None, digest):
        raise BadEvaluation(
            f"The episodes so far were played by the policy {name!r} of the checkpoint {earlier}, and the checkpoint "
            f"or the code of the policy has changed since ({DIGEST} {before[DIGEST]}, now {digest}). New "
            "episodes could not be compared with them: restore the old state, or start a new evaluation."
        )
    return HeldCheckpoint(str(path), str(folder), str(into), digest)


def _copied(folder: Path, wanted: Path | None, name: str, spec: PolicySpec, into: Path) -> Path:
    """Copy the checkpoint `wanted`, or the newest of a run, and return the path of the original."""
    is_run = (folder / _RUN).is_file()
    skipped = (_MEMORY,) if _is_learners_class(spec) else ()
    for tries in range(1, _MAX_TRIES + 1):
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
                    "gone. New episodes could not be compared with them: restore it, or start a new evaluation."
                ) from None
            if not is_run or tries == _MAX_TRIES:
                raise BadEvaluation(
                    f"The checkpoint {path} of the policy {name!r} was removed while it was copied. Make its training "
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


# ---- fingerprints ---------------------------------------------------------------------------------------------------


def fingerprint(source: Any, apart_from: Collection[Path] = ()) -> str | None:
    """Return a short hash that is equal for equal policies. Return None if there is nothing to hash.

    The hash of a spec covers the source of its module and its data files; the hash of an object or a function covers
    its code. Modules that these import are not covered, nor is what an object holds: a change of weights in a file is
    noticed, a change of weights in memory is not. Code of this package is never covered, nor are the files
    `apart_from`, because results are written to them.
    """
    parts = list(_parts_of_spec(source, apart_from) if isinstance(source, PolicySpec) else _parts_of_object(source))
    if not parts:
        return None
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


def _parts_of_spec(spec: PolicySpec, apart_from: Collection[Path]) -> Iterator[bytes]:
    module = spec.class_path.partition(":")[0]
    if not _is_ours(module):
        try:
            found = importlib.util.find_spec(module)
        except Exception:  # noqa: BLE001  # its parent packages are user code; making the policy reports their errors
            found = None
        if found is not None and found.origin is not None and Path(found.origin).is_file():
            yield _hash_of_file(Path(found.origin))
    if spec.data_path is None:
        return
    data, skipped = Path(spec.data_path), {path.resolve() for path in apart_from}
    root = data / _CHECKPOINTS if (data / _CHECKPOINTS).is_dir() else data  # other files of a run are its history
    files = [root] if root.is_file() else sorted(Path(at, name) for at, _, names in os.walk(root) for name in names)
    for file in files:
        if file.is_file() and file.resolve() not in skipped:
            yield str(file.relative_to(root)).encode("utf-8", "surrogateescape")
            yield _hash_of_file(file)


def _hash_of_file(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            return hashlib.file_digest(opened, "blake2b").digest()
    except OSError:  # making the policy reports the error
        return b""


def _parts_of_object(source: Any) -> Iterator[bytes]:
    thing = source.func if isinstance(source, functools.partial) else source
    codes = list(_codes_of(thing))
    for code in codes:
        yield from _parts_of_code(code)
    package = type(thing).__module__.partition(".")[0]
    for kind in () if codes else type(thing).__mro__:
        if kind.__module__.partition(".")[0] == package and not _is_ours(kind.__module__):
            for name, attribute in sorted(vars(kind).items()):
                for code in _codes_of(attribute):
                    yield name.encode()
                    yield from _parts_of_code(code)


def _codes_of(attribute: Any) -> Iterator[CodeType]:
    parts = (attribute.fget, attribute.fset) if isinstance(attribute, property) else (attribute,)
    for part in parts:
        function = part.__func__ if isinstance(part, classmethod | staticmethod | MethodType) else part
        if isinstance(function, FunctionType):
            yield inspect.unwrap(function).__code__


def _parts_of_code(code: CodeType) -> Iterator[bytes]:
    yield code.co_code
    yield repr((code.co_names, code.co_varnames, code.co_freevars)).encode()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _parts_of_code(constant)
        elif isinstance(constant, frozenset):
            yield repr(sorted(map(repr, constant))).encode()  # the order of a set changes from run to run
        else:
            yield repr(constant).encode("utf-8", "backslashreplace")


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == __name__.partition(".")[0]
