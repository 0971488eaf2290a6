"""Which descriptors the engine owns, and that a forked child lets go of them."""

from __future__ import annotations

import os
from pathlib import Path

from parallel_envs.engine.channel import close_in_child, owned
from tests.engine.asking import host
from tests.engine.conftest import Open
from tests.engine.hosted import Echo


def test_a_pool_owns_descriptors_while_it_is_open(open_processes: Open) -> None:
    before = set(owned)
    pool = open_processes(2)
    host(pool, Echo)
    mine = owned - before
    assert mine <= {int(link.name) for link in Path("/proc/self/fd").iterdir()}
    assert len(mine) >= 2 * 3  # for each worker a bell, a channel and a sentinel
    pool.close()
    assert owned == before


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def test_a_child_keeps_what_it_is_to_keep_and_no_more() -> None:
    kept, others = os.pipe()
    owned.update((kept, others))
    child = os.fork()
    if child == 0:
        close_in_child([kept])
        os._exit(0 if is_open(kept) and not is_open(others) and not owned else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    owned.difference_update((kept, others))
    for fd in (kept, others):
        os.close(fd)
