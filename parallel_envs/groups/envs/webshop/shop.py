"""A shop: its products, their index, and what is wanted there. Made once a process for each edition of its files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from parallel_envs.groups.envs.editions import Edition, edition, shipped
from parallel_envs.groups.envs.faults import fault
from parallel_envs.groups.envs.halves import half
from parallel_envs.groups.envs.records import Entry
from parallel_envs.groups.envs.webshop.catalogue import Product, read_attributes, read_products
from parallel_envs.groups.envs.webshop.config import WebShopConfig
from parallel_envs.groups.envs.webshop.goals import Wish, read_instructions, wishes_by_people, wishes_made
from parallel_envs.groups.envs.webshop.ranking import Index

SHIPPED = ("shop_items.json", "shop_attributes.json", "shop_instructions.json")


@dataclass(frozen=True, slots=True, eq=False)
class Shop:
    """Read-only, and shared by all envs of a process."""

    products: tuple[Product, ...]
    index: Index
    wishes: tuple[Wish, ...]


@dataclass(frozen=True, slots=True)
class Files:
    """The files of a shop as they are now."""

    items: Edition
    attributes: Edition | None
    instructions: Edition | None


def shop_for(config: WebShopConfig) -> Shop:
    return _shop(_files(config), config.num_products, config.limit_goals, config.human_goals)


def wishes_for(config: WebShopConfig, *, training: bool) -> tuple[Wish, ...]:
    """What is wanted in training, or in validation: no product is wanted in both."""
    return _half(shop_for(config), config.val_share, training)


@lru_cache(maxsize=16)
def _half(shop: Shop, val_share: float, training: bool) -> tuple[Wish, ...]:
    return half(shop.wishes, lambda wish: wish.product.asin, val_share, training=training)


def _files(config: WebShopConfig) -> Files:
    paths: Iterable[str | None] = (config.file_path, config.attributes_path, config.instructions_path)
    if config.file_path is None:
        paths = (shipped(name) for name in SHIPPED)
    items, attributes, instructions = (None if path is None else edition(path) for path in paths)
    assert items is not None  # the one path that is always there
    return Files(items, attributes, instructions)


@lru_cache(maxsize=4)
def _shop(files: Files, num_products: int | None, limit_goals: int | None, human_goals: bool) -> Shop:
    attributes, made = ({}, {}) if files.attributes is None else read_attributes(files.attributes.path)
    products = read_products(files.items.path, attributes, num_products)
    by_asin = {product.asin: product for product in products}
    wishes = _by_people(files, by_asin) if human_goals else _made(files, made, by_asin)
    return Shop(products, Index(product.words() for product in products), wishes[:limit_goals])


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
