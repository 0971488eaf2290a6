"""A disk that is full from some write on, for tests: each operation that needs room fails in turn."""

from __future__ import annotations

import contextlib
import errno
import io
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from parallel_envs import files


class FullDisk:
    """Counts the operations that need room below a folder, and fails some.

    A write that fails has written half of what it was given, as on a real disk.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        self.free()

    def free(self) -> None:
        """There is room. Counting begins anew."""
        self.num_operations = self.num_failed = 0
        self.failing = range(0)

    def fill(self, first: int = 1, times: int | None = None) -> None:
        """Fail `times` operations (None: all) from the `first` on, counted from now."""
        self.free()
        self.failing = range(first, 1 << 62) if times is None else range(first, first + times)

    def need_room(self, path: Any) -> None:
        """Count an operation on this path, and raise OSError if it is one that fails."""
        if not str(path).startswith(self.folder):
            return
        self.num_operations += 1
        if self.num_operations in self.failing:
            self.num_failed += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


class _File:
    """A file that asks for room."""

    def __init__(self, file: Any, disk: FullDisk) -> None:
        self._file, self._disk = file, disk
        self._path = Path(f"/proc/self/fd/{file.fileno()}").readlink()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def write(self, data: Any) -> int:
        try:
            self._disk.need_room(self._path)
        except OSError:
            self._file.write(bytes(data)[: len(data) // 2])
            raise
        return int(self._file.write(data))


@contextlib.contextmanager
def full_disk(folder: Path) -> Iterator[FullDisk]:
    """Have the disk that holds `folder` be one that can be filled, for files that are opened within the context."""
    disk = FullDisk(folder)

    def needing(function: Any) -> Any:
        def called(path: Any, *how: Any, **more: Any) -> Any:
            if isinstance(path, int):
                disk.need_room(Path(f"/proc/self/fd/{path}").readlink())
            elif function.__name__ != "mkdir" or not Path(path).is_dir():
                disk.need_room(path)
            return function(path, *how, **more)

        return called

    opened = os.fdopen
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fdopen", lambda *how, **more: _File(opened(*how, **more), disk))
        patch.setattr(files, "io", SimpleNamespace(FileIO=lambda fd, mode: _File(io.FileIO(fd, mode), disk)))
        for function in (os.mkdir, os.rename, os.replace, os.fsync):
            patch.setattr(os, function.__name__, needing(function))
        yield disk
