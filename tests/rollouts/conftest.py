"""Managers that are closed when their test ends, over every backend, and gates, as in the tests of the manager."""

from tests.vector.conftest import backend, gate, make, make_parallel, make_process

__all__ = ["backend", "gate", "make", "make_parallel", "make_process"]
