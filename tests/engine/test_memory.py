"""Shared memory without a name: seen alike by all it was given to, freed with its last user."""

from __future__ import annotations

import gc
import os
import tempfile
from pathlib import Path

import pytest

from parallel_envs.engine import SharedBlock
from tests.engine.asking import run, settled
from tests.engine.conftest import Open
from tests.engine.hosted import BlockKeeper


def test_a_block_may_be_closed_as_soon_as_it_was_sent(open_any: Open) -> None:
    pool = open_any()
    block = SharedBlock.create(80)
    ours = block.array("f8", (10,))
    key = pool.new_key()
    built = pool.call(0, 0, "build", key, BlockKeeper, block)
    block.close()
    block.close()
    assert settled(pool, built).replies == {}
    settled(pool, pool.call(0, key, "write", 0, 7.5))
    assert ours[0] == 7.5


def test_memory_goes_with_its_last_array() -> None:
    block = SharedBlock.create(1 << 20)
    array = block.array("u1", (1 << 20,))
    inode = os.fstat(block.fd).st_ino
    block.close()
    del block
    assert _is_mapped(inode)
    del array
    gc.collect()
    assert not _is_mapped(inode)


def _is_mapped(inode: int) -> bool:
    return any(line.split()[4] == str(inode) for line in Path("/proc/self/maps").read_text().splitlines())


def test_without_memfd_a_file_without_a_name_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    block = SharedBlock.create(16)
    array = block.array("i8", (2,))
    array[:] = [1, 2]
    assert list(tmp_path.iterdir()) == []
    again = SharedBlock(os.dup(block.fd), 16)
    assert again.array("i8", (2,)).tolist() == [1, 2]
    for one in (block, again):
        one.close()


@pytest.mark.parametrize("count", [60, 100, 300])
def test_any_number_of_blocks_travels_or_is_refused(open_forkserver: Open, count: int) -> None:
    pool = open_forkserver()
    blocks = [SharedBlock.create(8) for _ in range(count)]
    for number, block in enumerate(blocks):
        block.buffer[0] = number % 256
    try:
        seen = run(pool, lambda *given: [block.buffer[0] for block in given], *blocks)
        assert seen == [number % 256 for number in range(count)]
    except (TypeError, ValueError):
        assert count > 60
    finally:
        for block in blocks:
            block.close()
