"""The generators that belong to nobody, seeded for an episode and put back after it."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator

import numpy as np


@contextlib.contextmanager
def seeded_globally(seed: int) -> Iterator[None]:
    """Python's, NumPy's and torch's own generators begin at `seed` within the context; afterwards they are as before.

    Policies and environments are better off with generators of their own; those that draw from these are to give the
    same episode nevertheless.
    """
    torch = sys.modules.get("torch")
    python, numpy = random.getstate(), np.random.get_state()
    of_torch = None if torch is None else torch.get_rng_state()
    random.seed(seed)
    np.random.seed(seed)
    if torch is not None:
        torch.random.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        if torch is not None:
            torch.set_rng_state(of_torch)
