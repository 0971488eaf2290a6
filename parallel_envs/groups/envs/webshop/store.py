"""A large shop on disk, which all processes map into their memory read-only, so that the machine holds it once.

The first process that wants a shop has another process write it: `shop.main`.
Others wait for that. Each shop has a folder of its own, named by the state of the files that it was read from, in
`cache_dir`; a folder may be deleted while no process uses it, and is then written anew. Where no folder can be written,
`mapped` returns None, and each process holds a copy of its own. There is text in JSON and there are NumPy arrays,
nothing that runs when it is read.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from parallel_envs.groups.envs.webshop.catalogue import Product
from parallel_envs.groups.envs.webshop.goals import Wish
from parallel_envs.groups.envs.webshop.ranking import Columns

__all__ = ["Records", "cache_dir_or_usual", "mapped", "write"]

_log = logging.getLogger(__name__)
_FORM = 1
"""To be counted up when anything in the folders changes, or what is read of the files."""
_ROOM = __name__.rpartition(".")[0]
_COLUMNS = ("words", "word_ends", "documents", "times", "ends", "norms")

Item = TypeVar("Item")


class Records(Sequence[Item], Generic[Item]):
    """Items in a file, each made anew when it is asked for."""

    def __init__(self, folder: Path, name: str, made: Callable[[Any], Item]) -> None:
        with (folder / f"{name}.json").open("rb") as file:
            self._text = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._ends: NDArray[Any] = np.load(folder / f"{name}.npy", mmap_mode="r")
        self._made = made

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, number: Any) -> Any:
        begin = int(self._ends[number - 1]) if number else 0
        return self._made(json.loads(self._text[begin : int(self._ends[number])]))


def cache_dir_or_usual(given: str | None) -> Path:
    """Return the folder where shops are kept: the one that is given, or `parallel_envs` in the user's cache."""
    usual = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "parallel_envs" / "webshop"
    return usual if given is None else Path(given)


def mapped(cache_dir: Path, what: str, arguments: dict[str, Any]) -> Path | None:
    """Return the folder of a shop, which is written if there is none; None if that cannot be done.

    Args:
        cache_dir: Where the folder is.
        what: All that the shop depends on.
        arguments: The fields of the config by which `shop.main` writes this shop.
    """
    folder = cache_dir / hashlib.blake2b(f"{_FORM} {what}".encode(errors="surrogatepass"), digest_size=16).hexdigest()
    try:
        cache_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (cache_dir / f"{folder.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the others wait for the one that writes
            if not folder.is_dir():
                _log.info("writing the shop %s to %s", arguments["file_path"], folder)
                told = json.dumps({**arguments, "folder": str(folder), "what": what})
                command = [sys.executable, "-P", "-c", f"from {_ROOM}.shop import main; main()"]
                paths = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
                done = subprocess.run(command, input=told, env=paths, capture_output=True, text=True, check=False)
                if not folder.is_dir():
                    _log.warning("the shop was not written, so each process holds its own: %s", done.stderr.strip())
    except OSError as error:
        _log.warning("no shop can be kept in %s, so each process holds its own: %s", cache_dir, str(error))
    return folder if folder.is_dir() else None


def write(folder: Path, products: Sequence[Product], wishes: Iterable[Wish], columns: Columns) -> None:
    """Write a shop. The folder is there when all of it is."""
    unfinished = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        numbers = {product.asin: number for number, product in enumerate(products)}
        _write_records(unfinished, "products", map(plain_product, products))
        of_wishes = [(numbers[one.product.asin], one.instruction, one.attributes, one.options) for one in wishes]
        _write_records(unfinished, "wishes", of_wishes)
        np.save(unfinished / "wanted.npy", np.array([products[number].asin for number, *_ in of_wishes]))
        for name in _COLUMNS:
            np.save(unfinished / f"{name}.npy", columns[name])
        unfinished.rename(folder)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def _write_records(folder: Path, name: str, records: Iterable[Any]) -> None:
    ends, end = [], 0
    with (folder / f"{name}.json").open("wb") as file:
        for record in records:
            end += file.write(json.dumps(record).encode())
            ends.append(end)
    np.save(folder / f"{name}.npy", np.array(ends, np.int64))


def columns_in(folder: Path) -> Columns:
    """Return the index of a shop."""
    return {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in _COLUMNS}


def plain_product(product: Product) -> list[Any]:
    """Return a product as JSON has it."""
    return [getattr(product, name) for name in Product.__slots__]


def product_of(told: list[Any]) -> Product:
    """Return the product that `plain_product` told of."""
    fields = dict(zip(Product.__slots__, told, strict=True))
    options = {name: tuple(values) for name, values in fields["options"].items()}
    lists = {name: tuple(fields[name]) for name in ("features", "attributes")}
    return Product(**{**fields, **lists, "options": options})
