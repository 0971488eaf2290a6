"""Infos: dicts in, Gymnasium's batched dict with masks out, and as little as possible in between.

An info whose values are all numbers (nested dicts of numbers too) goes through shared memory: its *schema*, the names
and types of its entries, is announced once by each worker; after that a step writes the schema's number and the
packed values. An empty info costs one integer. Anything else is pickled, that env's whole info. An info with a key
whose text may differ between processes (an object, a function, a set) is pickled too: where workers are processes such
a key reaches the caller as a copy, which equals the original only if its class compares by value.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from parallel_envs.vector.buffers import INFO_BYTES, cells

Info = dict[str, Any]
Path = tuple[Any, ...]

MOST_SCHEMAS = 256
"""How many kinds of infos a worker has schemas for; others are sent whole. Keys that never come again (a count in a
name) would otherwise fill the memory on both sides.
"""

EMPTY, PICKLED = 0, -1
"""In the place of a schema's number: there is nothing; it went by pipe."""

_CODES: dict[type, str] = {
    bool: "?",
    int: "q",
    float: "d",
    np.bool_: "?",
    np.int8: "b",
    np.int16: "h",
    np.int32: "i",
    np.int64: "q",
    np.uint8: "B",
    np.uint16: "H",
    np.uint32: "I",
    np.uint64: "Q",
    np.float16: "e",
    np.float32: "f",
    np.float64: "d",
}
"""For each type of number what `struct` calls it. NumPy's dtype is the type itself."""

_PLAIN_KEYS = frozenset({str, bytes, np.str_, np.bytes_, type(None), complex, *_CODES})
"""Types of keys whose `repr` is the same in every process, and differs wherever the keys do: schemas may hold them."""


@dataclass(frozen=True)
class Schema:
    """The entries of an info: where they stand in the nested dicts, and their types."""

    paths: tuple[Path, ...]
    types: tuple[type, ...]

    def __reduce__(self) -> tuple[type[Schema], tuple[tuple[Path, ...], tuple[type, ...]]]:
        return Schema, (self.paths, self.types)

    @cached_property
    def number(self) -> int:
        """The same in every process, and neither `EMPTY` nor `PICKLED`."""
        digest = hashlib.blake2b(repr((self.paths, self.types)).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") >> 1 | 1

    @cached_property
    def packer(self) -> struct.Struct:
        return struct.Struct("=" + "".join(_CODES[kind] for kind in self.types))

    @cached_property
    def row_dtype(self) -> np.dtype[Any]:
        """The packed values of one env, seen by NumPy."""
        sizes = [struct.calcsize("=" + _CODES[kind]) for kind in self.types]
        return np.dtype(
            {
                "names": [f"f{position}" for position in range(len(sizes))],
                "formats": [np.dtype(kind) for kind in self.types],
                "offsets": [sum(sizes[:position]) for position in range(len(sizes))],
                "itemsize": INFO_BYTES,
            }
        )

    @property
    def fits(self) -> bool:
        """Whether shared memory can hold such an info, and `number` means the same in every process."""
        return (
            all(kind in _CODES for kind in self.types)
            and self.packer.size <= INFO_BYTES
            and all(_is_plain(key) for path in self.paths for key in path)
        )

    def unpack(self, row: npt.NDArray[np.uint8]) -> Info:
        """The info as the env gave it."""
        info: Info = {}
        for path, kind, value in zip(self.paths, self.types, self.packer.unpack_from(row.data), strict=True):
            inner = info
            for key in path[:-1]:
                inner = inner.setdefault(key, {})
            inner[path[-1]] = kind(value)
        return info


def _is_plain(key: Any) -> bool:
    return type(key) in _PLAIN_KEYS or (type(key) is tuple and all(map(_is_plain, key)))


class InfoWriter:
    """The worker's side: puts infos where the caller finds them."""

    def __init__(self, rows: npt.NDArray[np.uint8]) -> None:
        self._rows = cells(rows).cast("B")
        self._known: dict[tuple[tuple[Any, ...], tuple[type, ...]], Schema | None] = {}
        self._nested: dict[Schema, Schema] = {}
        self._announced: set[int] = set()

    def write(self, index: int, info: Info) -> tuple[int, Schema | None]:
        """Write the info of env `index`.

        Returns its schema's number, or `EMPTY`, or `PICKLED` if it does not fit and must be sent; and the schema itself
        if the caller has yet to be told of it.
        """
        if not info:
            return EMPTY, None
        shape = tuple(info), tuple(map(type, info.values()))
        schema = self._known.get(shape)
        values: Iterable[Any] = info.values()
        if schema is None and shape not in self._known:
            schema, values = self._learn(shape, info)
        if schema is None or not self._pack(index, schema, values):
            return PICKLED, None
        if schema.number in self._announced:
            return schema.number, None
        self._announced.add(schema.number)
        return schema.number, schema

    def announce_anew(self) -> None:
        """The caller may not have heard of the schemas that it was told of: tell it again."""
        self._announced.clear()

    def _learn(self, shape: tuple[tuple[Any, ...], tuple[type, ...]], info: Info) -> tuple[Schema | None, list[Any]]:
        """The schema of an info that has not been met before, or of one that holds dicts."""
        if dict not in shape[1] and len(self._known) >= MOST_SCHEMAS:
            return None, []
        paths, values = _flatten(info)
        schema = Schema(tuple(paths), tuple(map(type, values)))
        if not paths or not schema.fits:
            if dict not in shape[1] and all(map(_is_plain, shape[0])):  # others may be new objects at each step
                self._known[shape] = None
            return None, values
        if dict in shape[1]:  # what lies inside may change: such an info is looked at each time
            if schema not in self._nested and len(self._nested) >= MOST_SCHEMAS:
                return None, []
            return self._nested.setdefault(schema, schema), values
        self._known[shape] = schema
        return schema, values

    def _pack(self, index: int, schema: Schema, values: Iterable[Any]) -> bool:
        try:
            schema.packer.pack_into(self._rows, index * INFO_BYTES, *values)
        except (struct.error, OverflowError):  # a number too large for its place
            return False
        return True


def _flatten(info: Mapping[Any, Any], path: Path = ()) -> tuple[list[Path], list[Any]]:
    """Paths and values of all entries. An empty dict inside is an entry, of a type that never fits."""
    paths: list[Path] = []
    values: list[Any] = []
    for key, value in info.items():
        if type(value) is dict and value:
            inner_paths, inner_values = _flatten(value, (*path, key))
            paths += inner_paths
            values += inner_values
        else:
            paths.append((*path, key))
            values.append(value)
    return paths, values


class InfoReader:
    """The caller's side: batches what lies in shared memory with what came by pipe."""

    def __init__(self, schemas: npt.NDArray[np.int64], rows: npt.NDArray[np.uint8]) -> None:
        self._numbers = schemas
        self._rows = rows
        self._schemas: dict[int, Schema] = {}
        self._columns: dict[int, list[tuple[Path, type, npt.NDArray[Any]]]] = {}

    def learn(self, schema: Schema) -> None:
        if schema.number not in self._schemas:
            self._schemas[schema.number] = schema
            table = self._rows.view(schema.row_dtype)[:, 0]
            self._columns[schema.number] = [
                (path, kind, table[f"f{position}"])
                for position, (path, kind) in enumerate(zip(schema.paths, schema.types, strict=True))
            ]

    def batch(self, indices: npt.NDArray[np.intp] | None, pickled: Mapping[int, Info]) -> Info:
        """The infos of the envs `indices` (None: of all), row by row in that order.

        `pickled` holds, by env, the infos that came by pipe.
        """
        if indices is None and not self._numbers.any():
            return {}
        numbers = self._numbers if indices is None else self._numbers[indices]
        first = int(numbers[0])
        if (numbers == first).all():
            if first == EMPTY:
                return {}
            if first != PICKLED:
                return self._columnwise(first, indices, np.ones(len(numbers), np.bool_))
        elif not pickled:
            present = numbers != EMPTY
            kinds = numbers[present]
            if (kinds == kinds[0]).all():
                return self._columnwise(int(kinds[0]), indices, present)
        return self._row_by_row(numbers.tolist(), indices, pickled)

    def each(self, envs: Iterable[int], pickled: Mapping[int, Info]) -> list[Info]:
        """The info of each of these envs, as it gave it."""
        return [self.single(env, pickled) for env in envs]

    def single(self, env: int, pickled: Mapping[int, Info]) -> Info:
        """The info of one env, as the env gave it."""
        number = int(self._numbers[env])
        if number == EMPTY:
            return {}
        return pickled.get(env, {}) if number == PICKLED else self._schemas[number].unpack(self._rows[env])

    def _columnwise(self, number: int, indices: npt.NDArray[np.intp] | None, present: npt.NDArray[np.bool_]) -> Info:
        """All rows that are present have the same schema: one copy an entry."""
        infos: Info = {}
        whole = bool(present.all())
        for path, kind, column in self._columns[number]:
            inner = infos
            for key in path[:-1]:
                if key not in inner:
                    inner[key], inner[f"_{key}"] = {}, present.copy()
                inner = inner[key]
            values = column.copy() if indices is None else column[indices]
            if not whole:
                values[~present] = 0
            if kind is np.bool_:
                values = _as_objects(values, present)
            inner[path[-1]], inner[f"_{path[-1]}"] = values, present.copy()
        return infos

    def _row_by_row(
        self, numbers: list[int], indices: npt.NDArray[np.intp] | None, pickled: Mapping[int, Info]
    ) -> Info:
        infos: Info = {}
        for row, number in enumerate(numbers):
            env = row if indices is None else int(indices[row])
            if number == PICKLED:
                add_info(infos, pickled.get(env, {}), row, len(numbers))
            elif number != EMPTY:
                add_info(infos, self._schemas[number].unpack(self._rows[env]), row, len(numbers))
        return infos


def add_info(infos: Info, info: Mapping[Any, Any], row: int, num_rows: int) -> Info:
    """Put one env's info into the batch `infos`, in Gymnasium's layout: `infos[key]` and the mask `infos["_key"]`."""
    for key, value in info.items():
        mask = infos.get(f"_{key}")
        if isinstance(value, dict) and key != "final_obs" and isinstance(infos.get(key, {}), dict):
            infos[key] = add_info(infos.get(key, {}), value, row, num_rows)
        else:
            if key not in infos:
                infos[key] = np.full(num_rows, None, object) if key == "final_obs" else _column(value, num_rows)
            infos[key] = _put(infos[key], row, value)
        if mask is None:  # made last: the key comes before its mask
            mask = infos[f"_{key}"] = np.zeros(num_rows, np.bool_)
        mask[row] = True
    return infos


def _column(value: Any, num_rows: int) -> npt.NDArray[Any]:
    """An empty column for values like this one."""
    kind = type(value)
    if kind in (int, float, bool) or issubclass(kind, np.number):
        return np.zeros(num_rows, kind)
    if isinstance(value, np.ndarray):
        return np.zeros((num_rows, *value.shape), value.dtype)
    return np.full(num_rows, None, object)


def _put(column: Any, row: int, value: Any) -> Any:
    """Write a value. One that does not fit the column's type turns it into a column of objects: nothing is lost."""
    try:
        column[row] = value
        return column
    except (TypeError, ValueError, OverflowError):
        objects = np.full(len(column), None, object)
        for earlier in range(row):
            objects[earlier] = column[earlier]
        objects[row] = value
        return objects


def _as_objects(values: npt.NDArray[Any], present: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
    """Gymnasium keeps NumPy's own booleans in a column of objects."""
    objects = np.full(len(values), None, object)
    for row in np.flatnonzero(present):
        objects[row] = values[row]
    return objects
