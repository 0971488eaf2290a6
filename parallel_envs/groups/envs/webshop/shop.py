"""A shop: its products, their search index (Okapi BM25), and the wishes. A process makes it once per version of files.

A large shop is kept on disk, and all processes map it into their memory read-only, so that the machine holds it once.
The first process that needs a shop starts another process that writes it (`main`), and the others wait. Each shop has a
folder of its own in `cache_dir`, named by the versions of its files; a folder may be deleted while no process uses it,
and is then written again. If no folder can be written, each process holds a copy of its own. A folder contains JSON
and NumPy arrays, nothing that runs when it is read.
"""

from __future__ import annotations

import bisect
import fcntl
import hashlib
import json
import logging
import mmap
import os
import subprocess
import sys
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from parallel_envs.files import new_folder
from parallel_envs.groups.envs.records import (
    FileVersion,
    data_file_error,
    file_version,
    included_file,
    train_val_split,
)
from parallel_envs.groups.envs.webshop.products import (
    Product,
    Wish,
    read_attributes,
    read_products,
    wishes_by_people,
    wishes_made,
    words_of,
)

if TYPE_CHECKING:
    from parallel_envs.groups.envs.webshop.env import WebShopConfig


K1, B = 0.9, 0.4  # WebShop uses Lucene with these values, from Pyserini

Columns = dict[str, NDArray[Any]]
"""Arrays of an index, by name. Each may be a read-only memory map that processes share.

`words`: the words in order, one behind the other, as bytes, each of which ends at its `word_ends`. A word's `documents`
and how often they have it (`times`) end at its `ends`. `norms`: the factor for the length of each document.
"""


def columns_of(documents: Iterable[str]) -> Columns:
    """Return the index of these documents."""
    postings: dict[str, tuple[array[int], array[float]]] = {}
    lengths: list[int] = []
    for number, document in enumerate(documents):
        words = words_of(document)
        lengths.append(len(words))
        for word, times in Counter(words).items():
            where, how_often = postings.setdefault(word, (array("i"), array("f")))
            where.append(number)
            how_often.append(times)
    mean = max(sum(lengths) / max(len(lengths), 1), 1.0)
    in_order = sorted(postings)
    ends = np.cumsum([len(postings[word][0]) for word in in_order], dtype=np.int64)
    documents_of = np.empty(ends[-1] if in_order else 0, np.int32)
    times_of = np.empty(len(documents_of), np.float32)
    begin = 0
    for word, end in zip(in_order, ends.tolist(), strict=True):
        where, how_often = postings.pop(word)
        documents_of[begin:end], times_of[begin:end] = where, how_often
        begin = end
    return {
        "words": np.frombuffer("".join(in_order).encode(), np.uint8),
        "word_ends": np.cumsum([len(word) for word in in_order], dtype=np.int64),
        "documents": documents_of,
        "times": times_of,
        "ends": ends,
        "norms": (K1 * (1 - B + B * np.array(lengths, np.float32) / mean)).astype(np.float32),
    }


class Index:
    """The documents of each word, and how often each document has it."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self._num_documents = len(columns["norms"])

    def _word(self, number: int) -> bytes:
        ends = self.columns["word_ends"]
        return self.columns["words"][int(ends[number - 1]) if number else 0 : int(ends[number])].tobytes()

    def scores(self, query: str) -> NDArray[np.float32]:
        """Return how well each document matches a query; 0 if it has none of its words."""
        columns, scores = self.columns, np.zeros(self._num_documents, np.float32)
        for word, times in sorted(Counter(words_of(query)).items()):
            sought = word.encode()
            numbers = range(len(columns["word_ends"]))
            place = bisect.bisect_left(numbers, sought, key=self._word)
            if place == len(numbers) or self._word(place) != sought:
                continue
            its = slice(int(columns["ends"][place - 1]) if place else 0, int(columns["ends"][place]))
            where, how_often = columns["documents"][its], columns["times"][its]
            weight = np.log(1 + (self._num_documents - len(where) + 0.5) / (len(where) + 0.5))
            scores[where] += times * weight * how_often * (K1 + 1) / (how_often + columns["norms"][where])
        return scores

    def search(self, query: str, most: int) -> tuple[int, ...]:
        """Return the numbers of the documents that match a query best, in that order; of equals, the earlier first."""
        scores = self.scores(query)
        found = np.flatnonzero(scores)
        return tuple(found[np.argsort(-scores[found], kind="stable")][:most].tolist())


_log = logging.getLogger(__name__)

INCLUDED = ("shop_items.json", "shop_attributes.json", "shop_instructions.json")

_WORTH_MAPPING = 16 * 2**20
"""Bytes of a products file from which on its shop is written to disk and shared."""
_FORMAT = 1
"""Increase this number when the content of the folders changes, or what is read of the files."""
_COLUMNS = ("words", "word_ends", "documents", "times", "ends", "norms")

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, eq=False)
class Shop:
    """Products, their index and the wishes, read-only, shared by all envs of a process.

    `wanted`: for each wish the asin of its product.
    """

    products: Sequence[Product]
    index: Index
    wishes: Sequence[Wish]
    wanted: Sequence[str]


Files = tuple[FileVersion, FileVersion | None, FileVersion | None]
"""The present versions of the files of items, attributes and instructions."""


def shop_for(config: WebShopConfig) -> Shop:
    usual = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "parallel_envs" / "webshop"
    cache_dir = usual if config.cache_dir is None else Path(config.cache_dir)
    return _shop(_files(config), config.num_products, config.limit_goals, config.human_goals, str(cache_dir))


def wishes_for(config: WebShopConfig) -> tuple[Sequence[int], Sequence[int]]:
    """Return the numbers of the wishes for training, and for validation: no product is wanted in both."""
    return _split(shop_for(config), config.val_share)


@lru_cache(maxsize=16)
def _split(shop: Shop, val_share: float) -> tuple[Sequence[int], Sequence[int]]:
    train, val = train_val_split(range(len(shop.wanted)), lambda one: str(shop.wanted[one]), val_share)
    return array("i", train), array("i", val)


def _files(config: WebShopConfig) -> Files:
    paths: Iterable[str | None] = (config.attributes_path, config.instructions_path)
    if config.file_path is not None:
        items = file_version(config.file_path)
    elif config.dataset == "full":
        raise ValueError(
            "dataset='full' was given without products, and the full set does not come with this package. Give "
            "file_path, attributes_path and instructions_path."
        )
    else:
        first, *rest = map(included_file, INCLUDED)
        items, paths = file_version(first), rest
    attributes, instructions = (None if path is None else file_version(path) for path in paths)
    return items, attributes, instructions


@lru_cache(maxsize=4)
def _shop(files: Files, num_products: int | None, limit_goals: int | None, human_goals: bool, cache_dir: str) -> Shop:
    if files[0].size >= _WORTH_MAPPING:
        names = ("file_path", "attributes_path", "instructions_path")
        arguments: dict[str, Any] = {name: one and one.path for name, one in zip(names, files, strict=True)}
        arguments |= {"num_products": num_products, "human_goals": human_goals}
        folder = _folder_of(Path(cache_dir), _identity(files, num_products, human_goals), arguments)
        if folder is not None:
            return _shop_in(folder, limit_goals)
    products, wishes = _read(files, num_products, human_goals)
    wishes = wishes[:limit_goals]
    index = Index(columns_of(product.words() for product in products))
    return Shop(products, index, wishes, [wish.product.asin for wish in wishes])


def _identity(files: Files, num_products: int | None, human_goals: bool) -> str:
    """Return everything that a shop depends on, as text.

    Folders in users' caches are named by this text, so its words must stay as they are.
    """
    listed = ", ".join(
        f"{name}=Edition(path={one.path!r}, modified={one.modified}, size={one.size})" if one else f"{name}=None"
        for name, one in zip(("items", "attributes", "instructions"), files, strict=True)
    )
    return f"(Files({listed}), {num_products!r}, {human_goals!r})"


def _read(files: Files, num_products: int | None, human_goals: bool) -> tuple[tuple[Product, ...], tuple[Wish, ...]]:
    items, of_products, instructions = files
    attributes, made = ({}, {}) if of_products is None else read_attributes(of_products.path)
    products = read_products(items.path, attributes, num_products)
    by_asin = {product.asin: product for product in products}
    source = instructions if human_goals else of_products
    assert source is not None  # the config has checked this
    wishes = tuple(wishes_by_people(source.path, by_asin) if human_goals else wishes_made(made, by_asin))
    if not wishes:
        what = "no instruction is about a product that is there. Give files that go together."
        raise data_file_error(source.path, None, what)
    return products, wishes


# ---- shops on disk --------------------------------------------------------------------------------------------------


class Records(Sequence[Item], Generic[Item]):
    """The first `most` items in a file, each made again when it is read."""

    def __init__(self, folder: Path, name: str, make: Callable[[Any], Item], most: int | None = None) -> None:
        with (folder / f"{name}.json").open("rb") as file:
            self._text = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._ends: NDArray[Any] = np.load(folder / f"{name}.npy", mmap_mode="r")[:most]
        self._make = make

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, number: Any) -> Any:
        begin = int(self._ends[number - 1]) if number else 0
        return self._make(json.loads(self._text[begin : int(self._ends[number])]))


def _folder_of(cache_dir: Path, identity: str, arguments: dict[str, Any]) -> Path | None:
    """Return the folder of a shop, which is written if it is not there; None if that cannot be done."""
    name = hashlib.blake2b(f"{_FORMAT} {identity}".encode(errors="surrogatepass"), digest_size=16).hexdigest()
    folder = cache_dir / name
    try:
        cache_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (cache_dir / f"{folder.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the others wait for the one that writes
            if not folder.is_dir():
                _log.info("writing the shop %s to %s", arguments["file_path"], folder)
                order = json.dumps({**arguments, "folder": str(folder), "what": identity})
                command = [sys.executable, "-P", "-c", f"from {__name__} import main; main()"]
                paths = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
                done = subprocess.run(command, input=order, env=paths, capture_output=True, text=True, check=False)
                if not folder.is_dir():
                    _log.warning("the shop was not written, so each process holds its own: %s", done.stderr.strip())
    except OSError as error:
        _log.warning("no shop can be kept in %s, so each process holds its own: %s", cache_dir, str(error))
    return folder if folder.is_dir() else None


def main() -> None:
    """Write the shop that is described on standard input. `_folder_of` runs this in a process of its own."""
    from parallel_envs.groups.envs.webshop.env import WebShopConfig

    order = json.load(sys.stdin)
    folder, identity = Path(order.pop("folder")), order.pop("what")
    config = WebShopConfig(**order)
    files = _files(config)
    if _identity(files, config.num_products, config.human_goals) != identity:
        raise SystemExit("A file has changed in the meantime.")
    products, wishes = _read(files, config.num_products, config.human_goals)
    _write(folder, products, wishes, columns_of(product.words() for product in products))


def _write(folder: Path, products: Sequence[Product], wishes: Iterable[Wish], columns: Columns) -> None:
    """Write a shop, whose folder appears when it is complete."""
    with new_folder(folder) as unfinished:
        numbers = {product.asin: number for number, product in enumerate(products)}
        plain = ([getattr(product, name) for name in Product.__slots__] for product in products)
        _write_records(unfinished, "products", plain)
        of_wishes = [(numbers[one.product.asin], one.instruction, one.attributes, one.options) for one in wishes]
        _write_records(unfinished, "wishes", of_wishes)
        np.save(unfinished / "wanted.npy", np.array([products[number].asin for number, *_ in of_wishes]))
        for name in _COLUMNS:
            np.save(unfinished / f"{name}.npy", columns[name])


def _write_records(folder: Path, name: str, records: Iterable[Any]) -> None:
    ends, end = [], 0
    with (folder / f"{name}.json").open("wb") as file:
        for record in records:
            end += file.write(json.dumps(record).encode())
            ends.append(end)
    np.save(folder / f"{name}.npy", np.array(ends, np.int64))


def _shop_in(folder: Path, limit_goals: int | None) -> Shop:
    """Return the shop in a folder."""

    def product(plain: list[Any]) -> Product:
        fields = dict(zip(Product.__slots__, plain, strict=True))
        options = {name: tuple(values) for name, values in fields["options"].items()}
        lists = {name: tuple(fields[name]) for name in ("features", "attributes")}
        return Product(**{**fields, **lists, "options": options})

    def wish(plain: list[Any]) -> Wish:
        number, instruction, attributes, options = plain
        return Wish(products[number], instruction, tuple(attributes), None if options is None else tuple(options))

    products: Records[Product] = Records(folder, "products", product)
    wanted = np.load(folder / "wanted.npy", mmap_mode="r")[:limit_goals]
    wishes: Records[Wish] = Records(folder, "wishes", wish, limit_goals)
    columns = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in _COLUMNS}
    return Shop(products, Index(columns), wishes, wanted)
