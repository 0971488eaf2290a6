"""A shop: its products, their index, and what is wanted there. Made once for each edition of its files."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from parallel_envs.groups.envs.editions import Edition, edition, shipped
from parallel_envs.groups.envs.faults import fault
from parallel_envs.groups.envs.halves import half
from parallel_envs.groups.envs.records import Entry
from parallel_envs.groups.envs.webshop.catalogue import Product, read_attributes, read_products
from parallel_envs.groups.envs.webshop.config import WebShopConfig
from parallel_envs.groups.envs.webshop.goals import Wish, read_instructions, wishes_by_people, wishes_made
from parallel_envs.groups.envs.webshop.ranking import Columns, Index, columns_of
from parallel_envs.groups.envs.webshop.store import Records, cache_dir_or_usual, columns_in, mapped, product_of, write

SHIPPED = ("shop_items.json", "shop_attributes.json", "shop_instructions.json")


_WORTH_MAPPING = 16 * 2**20
"""Bytes of a file of products from which on it is worth while to write the shop to disk and share it."""


@dataclass(frozen=True, slots=True, eq=False)
class Shop:
    """Read-only, and shared by all envs of a process; of large files, by all processes (see `store`).

    `wanted`: for each wish the asin of its product.
    """

    products: Sequence[Product]
    index: Index
    wishes: Sequence[Wish]
    wanted: Sequence[str]


class Chosen(Sequence[Wish]):
    """Some of a shop's wishes, by their numbers."""

    def __init__(self, wishes: Sequence[Wish], numbers: Iterable[int]) -> None:
        self._wishes, self._numbers = wishes, np.fromiter(numbers, np.int32)

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, place: Any) -> Any:
        return self._wishes[int(self._numbers[place])]


@dataclass(frozen=True, slots=True)
class Files:
    """The files of a shop as they are now."""

    items: Edition
    attributes: Edition | None
    instructions: Edition | None


def shop_for(config: WebShopConfig) -> Shop:
    where = str(cache_dir_or_usual(config.cache_dir))
    return _shop(_files(config), config.num_products, config.limit_goals, config.human_goals, where)


def wishes_for(config: WebShopConfig, *, training: bool) -> Sequence[Wish]:
    """What is wanted in training, or in validation: no product is wanted in both."""
    return _half(shop_for(config), config.val_share, training)


@lru_cache(maxsize=16)
def _half(shop: Shop, val_share: float, training: bool) -> Sequence[Wish]:
    wanted = shop.wanted
    return Chosen(shop.wishes, half(range(len(wanted)), lambda one: str(wanted[one]), val_share, training=training))


def _files(config: WebShopConfig) -> Files:
    paths: Iterable[str | None] = (config.file_path, config.attributes_path, config.instructions_path)
    if config.file_path is None:
        if config.dataset == "full":
            raise ValueError(
                "dataset='full' was given without products, and the full set does not come with this package. Give "
                "file_path, attributes_path and instructions_path."
            )
        paths = (shipped(name) for name in SHIPPED)
    items, attributes, instructions = (None if path is None else edition(path) for path in paths)
    assert items is not None  # the one path that is always there
    return Files(items, attributes, instructions)


@lru_cache(maxsize=4)
def _shop(files: Files, num_products: int | None, limit_goals: int | None, human_goals: bool, where: str) -> Shop:
    if files.items.size >= _WORTH_MAPPING:
        of_config = {
            "file_path": files.items.path,
            "attributes_path": files.attributes and files.attributes.path,
            "instructions_path": files.instructions and files.instructions.path,
            "num_products": num_products,
            "human_goals": human_goals,
        }
        folder = mapped(Path(where), _named(files, num_products, human_goals), of_config)
        if folder is not None:
            return _shop_in(folder, limit_goals)
    products, wishes = _read(files, num_products, human_goals)
    wishes = wishes[:limit_goals]
    return Shop(products, Index(_index(products)), wishes, [wish.product.asin for wish in wishes])


def _named(files: Files, num_products: int | None, human_goals: bool) -> str:
    """All that what is read depends on."""
    return repr((files, num_products, human_goals))


def _read(files: Files, num_products: int | None, human_goals: bool) -> tuple[tuple[Product, ...], tuple[Wish, ...]]:
    attributes, made = ({}, {}) if files.attributes is None else read_attributes(files.attributes.path)
    products = read_products(files.items.path, attributes, num_products)
    by_asin = {product.asin: product for product in products}
    return products, _by_people(files, by_asin) if human_goals else _made(files, made, by_asin)


def _index(products: Iterable[Product]) -> Columns:
    return columns_of(product.words() for product in products)


def _shop_in(folder: Path, limit_goals: int | None) -> Shop:
    """The shop that was written to a folder."""
    products: Records[Product] = Records(folder, "products", product_of)

    def wish_of(told: list[Any]) -> Wish:
        number, instruction, attributes, options = told
        return Wish(products[number], instruction, tuple(attributes), None if options is None else tuple(options))

    wanted = np.load(folder / "wanted.npy", mmap_mode="r")[:limit_goals]
    wishes = Chosen(Records(folder, "wishes", wish_of), range(len(wanted)))
    return Shop(products, Index(columns_in(folder)), wishes, wanted)


def main() -> None:
    """Write the shop that is asked for on standard input. `store.mapped` runs this in a process of its own."""
    told = json.load(sys.stdin)
    folder, what = Path(told.pop("folder")), told.pop("what")
    config = WebShopConfig(**told)
    files = _files(config)
    if _named(files, config.num_products, config.human_goals) != what:
        raise SystemExit("A file has changed in the meantime.")
    products, wishes = _read(files, config.num_products, config.human_goals)
    write(folder, products, wishes, _index(products))


def _by_people(files: Files, products: dict[str, Product]) -> tuple[Wish, ...]:
    assert files.instructions is not None  # the config sees to it
    return _some(files.instructions, wishes_by_people(read_instructions(files.instructions.path), products))


def _made(files: Files, entries: dict[str, Entry], products: dict[str, Product]) -> tuple[Wish, ...]:
    assert files.attributes is not None  # the config sees to it
    return _some(files.attributes, wishes_made(entries, products))


def _some(source: Edition, found: Iterable[Wish]) -> tuple[Wish, ...]:
    wishes = tuple(found)
    if not wishes:
        raise fault(source.path, None, "no instruction is about a product that is there. Give files that go together.")
    return wishes
