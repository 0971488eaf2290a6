"""Infos: from the dict that each env returns to Gymnasium's dict of arrays with masks.

An info whose values are all numbers (also in nested dicts) goes through shared memory. Each worker announces the
*schema* of such an info once: the names and types of its entries. After that a step writes the number of the schema and
the packed values. An empty info costs one integer. Any other info is pickled as a whole. An info is also pickled if the
`repr` of a key may differ between processes (an object, a function, a set): where workers are processes, such a key
reaches the caller as a copy, which equals the original only if its class compares by value.
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

from parallel_envs.vector.shared_arrays import INFO_BYTES, cells

Info = dict[str, Any]
Path = tuple[Any, ...]

MOST_SCHEMAS = 256
"""The number of schemas that a worker may make. Infos of further kinds are pickled. Without this limit, keys that never
come again (a count in a name) would fill the memory on both sides.
"""

EMPTY, PICKLED = 0, -1
"""Stand for the number of a schema in a row: the info is empty; the info was sent by pipe."""

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
"""The format of `struct` for each type of number. The type itself is NumPy's dtype."""

_PLAIN_KEYS = frozenset({str, bytes, np.str_, np.bytes_, type(None), complex, *_CODES})
"""Types of keys whose `repr` is the same in every process and differs if the keys differ. Schemas may hold them."""


@dataclass(frozen=True)
class Schema:
    """The entries of an info: their paths in the nested dicts, and their types."""

    paths: tuple[Path, ...]
    types: tuple[type, ...]

    def __reduce__(self) -> tuple[type[Schema], tuple[tuple[Path, ...], tuple[type, ...]]]:
        return Schema, (self.paths, self.types)

    @cached_property
    def number(self) -> int:
        """Return a number that is the same in every process, and is neither `EMPTY` nor `PICKLED`."""
        digest = hashlib.blake2b(repr((self.paths, self.types)).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") >> 1 | 1

    @cached_property
    def packer(self) -> struct.Struct:
        return struct.Struct("=" + "".join(_CODES[kind] for kind in self.types))

    @property
    def fits(self) -> bool:
        """Return whether such an info fits in shared memory, and `number` means the same in every process."""
        return (
            all(kind in _CODES for kind in self.types)
            and self.packer.size <= INFO_BYTES
            and all(_is_plain(key) for path in self.paths for key in path)
        )

    def unpack(self, row: npt.NDArray[np.uint8]) -> Info:
        """Return the info as the env returned it."""
        info: Info = {}
        for path, kind, value in zip(self.paths, self.types, self.packer.unpack_from(row.data), strict=True):
            inner = info
            for key in path[:-1]:
                inner = inner.setdefault(key, {})
            inner[path[-1]] = kind(value)
        return info


def _is_plain(key: Any) -> bool:
    return type(key) in _PLAIN_KEYS or (type(key) is tuple and all(map(_is_plain, key)))


# ---- in a worker -----------------------------------------------------------------------------------------------------


class InfoWriter:
    """Writes infos into shared memory. `rows` has `INFO_BYTES` bytes for each env."""

    def __init__(self, rows: npt.NDArray[np.uint8]) -> None:
        self._rows = cells(rows).cast("B")
        self._known: dict[tuple[tuple[Any, ...], tuple[type, ...]], Schema | None] = {}
        self._nested: dict[Schema, Schema] = {}
        self._announced: set[int] = set()

    def write(self, index: int, info: Info) -> tuple[int, Schema | None]:
        """Write the info of env `index`. Returns the number of its schema, or `EMPTY`, or `PICKLED` if the info must be
        sent by pipe; and the schema itself if it must be announced to the caller.
        """
        if not info:
            return EMPTY, None
        shape = tuple(info), tuple(map(type, info.values()))
        schema = self._known.get(shape)
        values: Iterable[Any] = info.values()
        if schema is None and shape not in self._known:
            schema, values = self._learn(shape, info)
        if schema is None:
            return PICKLED, None
        try:
            schema.packer.pack_into(self._rows, index * INFO_BYTES, *values)
        except (struct.error, OverflowError):  # a number too large for its place
            return PICKLED, None
        if schema.number in self._announced:
            return schema.number, None
        self._announced.add(schema.number)
        return schema.number, schema

    def announce_again(self) -> None:
        """Announce every schema once more, since the caller may not have received the announcements so far."""
        self._announced.clear()

    def _learn(self, shape: tuple[tuple[Any, ...], tuple[type, ...]], info: Info) -> tuple[Schema | None, list[Any]]:
        """Return the schema and the values of an info that holds dicts or has not appeared before."""
        has_dicts = dict in shape[1]
        if not has_dicts and len(self._known) >= MOST_SCHEMAS:
            return None, []
        paths, values = _flatten(info)
        schema = Schema(tuple(paths), tuple(map(type, values)))
        if not paths or not schema.fits:
            if not has_dicts and all(map(_is_plain, shape[0])):  # other keys may be new objects at each step
                self._known[shape] = None
            return None, values
        if has_dicts:  # the entries inside may change, so such an info is flattened each time
            if schema not in self._nested and len(self._nested) >= MOST_SCHEMAS:
                return None, []
            return self._nested.setdefault(schema, schema), values
        self._known[shape] = schema
        return schema, values


def _flatten(info: Mapping[Any, Any], path: Path = ()) -> tuple[list[Path], list[Any]]:
    """Return paths and values of all entries. An empty dict inside is an entry with a type that never fits."""
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


# ---- on the caller's side --------------------------------------------------------------------------------------------


class InfoReader:
    """Makes batches of infos from shared memory and from the infos that came by pipe (`pickled`, by env)."""

    def __init__(self, schemas: npt.NDArray[np.int64], rows: npt.NDArray[np.uint8]) -> None:
        self._numbers = schemas
        self._rows = rows
        self._schemas: dict[int, Schema] = {}
        self._columns: dict[int, list[tuple[Path, type, npt.NDArray[Any]]]] = {}

    def learn(self, schema: Schema) -> None:
        if schema.number not in self._schemas:
            self._schemas[schema.number] = schema
            packed = np.dtype([(f"f{position}", kind) for position, kind in enumerate(schema.types)])
            table = self._rows[:, : packed.itemsize].view(packed)[:, 0]
            self._columns[schema.number] = [
                (path, kind, table[f"f{position}"])
                for position, (path, kind) in enumerate(zip(schema.paths, schema.types, strict=True))
            ]

    def single(self, env: int, pickled: Mapping[int, Info]) -> Info:
        """Return the info of one env as the env returned it."""
        number = int(self._numbers[env])
        if number == EMPTY:
            return {}
        return pickled.get(env, {}) if number == PICKLED else self._schemas[number].unpack(self._rows[env])

    def batch(self, indices: npt.NDArray[np.intp] | None, pickled: Mapping[int, Info]) -> Info:
        """Return the infos of the envs `indices` (None: of all envs), with rows in that order."""
        if indices is None and not self._numbers.any():
            return {}
        numbers = self._numbers if indices is None else self._numbers[indices]
        first = int(numbers[0])
        if (numbers == first).all():
            if first == EMPTY:
                return {}
            if first != PICKLED:
                return self._by_columns(first, indices, np.ones(len(numbers), np.bool_))
        elif not pickled:
            present = numbers != EMPTY
            kinds = numbers[present]
            if (kinds == kinds[0]).all():
                return self._by_columns(int(kinds[0]), indices, present)
        infos: Info = {}
        for row, number in enumerate(numbers.tolist()):
            if number != EMPTY:
                env = row if indices is None else int(indices[row])
                add_info(infos, self.single(env, pickled), row, len(numbers))
        return infos

    def _by_columns(self, number: int, indices: npt.NDArray[np.intp] | None, present: npt.NDArray[np.bool_]) -> Info:
        """Return infos of one schema: a single copy for each entry makes its column. `present` marks the rows."""
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
            if kind is np.bool_:  # Gymnasium keeps NumPy's own booleans in a column of objects
                objects = np.full(len(values), None, object)
                for row in np.flatnonzero(present):
                    objects[row] = values[row]
                values = objects
            inner[path[-1]], inner[f"_{path[-1]}"] = values, present.copy()
        return infos


def add_info(infos: Info, info: Mapping[Any, Any], row: int, num_rows: int) -> Info:
    """Put the info of one env into the batch `infos`, in Gymnasium's layout: `infos[key]` and the mask `infos["_key"]`.
    Returns `infos`.
    """
    for key, value in info.items():
        mask = infos.get(f"_{key}")
        if isinstance(value, dict) and key != "final_obs" and isinstance(infos.get(key, {}), dict):
            infos[key] = add_info(infos.get(key, {}), value, row, num_rows)
        else:
            if key not in infos:
                infos[key] = np.full(num_rows, None, object) if key == "final_obs" else _column(value, num_rows)
            try:
                infos[key][row] = value
            except (TypeError, ValueError, OverflowError):  # not of the type of the column: objects hold any value
                objects = np.full(num_rows, None, object)
                for earlier in range(row):
                    objects[earlier] = infos[key][earlier]
                objects[row] = value
                infos[key] = objects
        if mask is None:  # made last, since the key comes before its mask
            mask = infos[f"_{key}"] = np.zeros(num_rows, np.bool_)
        mask[row] = True
    return infos


def _column(value: Any, num_rows: int) -> npt.NDArray[Any]:
    """Return an empty column for values of the type of `value`."""
    kind = type(value)
    if kind in (int, float, bool) or issubclass(kind, np.number):
        return np.zeros(num_rows, kind)
    if isinstance(value, np.ndarray):
        return np.zeros((num_rows, *value.shape), value.dtype)
    return np.full(num_rows, None, object)
