"""Hypothesis strategies shared by the tests: spaces of every kind, and scripted envs over them."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces
from hypothesis import strategies as st

from parallel_envs.testing import InfoKind, RewardKind, ScriptedEnv
from tests.word_space import WordSpace

Space = spaces.Space[Any]

INTEGER_DTYPES: tuple[Any, ...] = (np.bool_, np.uint8, np.int8, np.uint16, np.int32, np.int64)
FLOAT_DTYPES: tuple[Any, ...] = (np.float16, np.float32, np.float64)

shapes = st.sampled_from([(), (0,), (1,), (3,), (2, 0), (2, 3), (2, 1, 2)])
names = st.sampled_from(["position", "vector", "a", "b/c", "1"])


@st.composite
def boxes(draw: st.DrawFn) -> spaces.Box:
    shape = draw(shapes)
    if draw(st.booleans()):
        return spaces.Box(0, 1, shape, draw(st.sampled_from(INTEGER_DTYPES)))
    low, high = draw(st.sampled_from([(-1.0, 1.0), (-np.inf, np.inf), (0.0, np.inf)]))
    return spaces.Box(low, high, shape, draw(st.sampled_from(FLOAT_DTYPES)))


def discretes() -> st.SearchStrategy[spaces.Discrete]:
    return st.builds(
        spaces.Discrete, st.integers(1, 5), start=st.integers(-3, 3), dtype=st.sampled_from([np.int64, np.int8])
    )


def multi_discretes() -> st.SearchStrategy[spaces.MultiDiscrete]:
    options: list[dict[str, Any]] = [
        {"nvec": [2, 3]},
        {"nvec": [[2, 3], [4, 5]], "start": [[1, 1], [-2, 0]]},
        {"nvec": [4], "dtype": np.int8},
    ]
    return st.sampled_from(options).map(lambda arguments: spaces.MultiDiscrete(**arguments))


def fixed_shape_leaves() -> st.SearchStrategy[Space]:
    """Spaces whose elements always have the same shape."""
    multi_binaries = st.builds(spaces.MultiBinary, st.sampled_from([1, 3, (2, 2)]))
    return st.one_of(boxes(), discretes(), multi_discretes(), multi_binaries)


def graphs() -> st.SearchStrategy[spaces.Graph]:
    nodes = st.sampled_from([spaces.Box(-1, 1, (2,)), spaces.Discrete(3)])
    edges = st.sampled_from([None, spaces.Box(0, 1, ()), spaces.Discrete(2)])
    return st.builds(spaces.Graph, nodes, edges)


def free_form_leaves() -> st.SearchStrategy[Space]:
    """Spaces whose elements have no fixed shape."""
    texts = st.builds(spaces.Text, st.integers(1, 6), min_length=st.integers(0, 1), charset=st.just("abcé世"))
    features = st.sampled_from([spaces.Box(-1, 1, (2,)), spaces.Discrete(4)])
    sequences = st.builds(spaces.Sequence, features, stack=st.booleans())
    return st.one_of(texts, sequences, graphs(), st.builds(WordSpace, st.integers(1, 3)))


def composites(parts: st.SearchStrategy[Space]) -> st.SearchStrategy[Space]:
    few = st.lists(parts, min_size=1, max_size=3)
    tuples = few.map(spaces.Tuple)
    dicts = st.dictionaries(names, parts, min_size=1, max_size=3).map(spaces.Dict)
    one_ofs = few.map(spaces.OneOf)
    return st.one_of(tuples, dicts, one_ofs)


def any_spaces() -> st.SearchStrategy[Space]:
    """Any space Gymnasium knows, one it does not, and nests of them."""
    return st.recursive(fixed_shape_leaves() | free_form_leaves(), composites, max_leaves=4)


@st.composite
def scripted_factories(draw: st.DrawFn) -> partial[ScriptedEnv]:
    """A factory of scripted envs: random spaces, episode ends, rewards and infos."""
    return partial(
        ScriptedEnv,
        draw(any_spaces()),
        draw(any_spaces()),
        episode_lengths=draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)),
        endings=draw(st.lists(st.sampled_from(["terminated", "truncated", "both"]), min_size=1, max_size=3)),
        rewards=draw(st.lists(st.sampled_from(RewardKind), min_size=1, max_size=2)),
        infos=draw(st.sets(st.sampled_from(InfoKind))),
        reuse_buffers=draw(st.booleans()),
    )
