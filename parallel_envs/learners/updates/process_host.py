"""What lives in a learner worker: some agents' brains for good, and their hand on the shared memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from parallel_envs.engine import SharedBlock
from parallel_envs.learners.algorithm import Agent, Algorithm, Plan, UpdateReport
from parallel_envs.learners.parameters import AgentParameters
from parallel_envs.learners.updates.sequential import try_update
from parallel_envs.vector.shared_arrays import Field, plan

Arrays = dict[str, npt.NDArray[Any]]
Form = tuple[Field, ...]

_PARTS = ("arrays", "noise")


class Outbox:
    """Room for all numbers of one brain, twice: while one version is read, the next is written into the other half.

    A half's header says which version it holds, and is written last.
    """

    def __init__(self, block: SharedBlock, fields: Form) -> None:
        arrays = {field.name: block.array(field.dtype, field.shape, field.offset) for field in fields}
        self._versions = arrays.pop("version")
        self._halves = [{name[2:]: array for name, array in arrays.items() if name[0] == which} for which in "01"]

    @staticmethod
    def form(arrays: Mapping[str, npt.NDArray[Any]]) -> tuple[Form, int]:
        """Where everything lies, and how many bytes it takes."""
        wanted: list[Any] = [("version", "i8", (2,))]
        wanted += [(f"{which}.{name}", array.dtype, array.shape) for which in "01" for name, array in arrays.items()]
        fields, num_bytes = plan(wanted)
        return tuple(fields), num_bytes

    def put(self, version: int, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        self._versions[version % 2] = -1
        for name, array in arrays.items():
            self._halves[version % 2][name][...] = array
        self._versions[version % 2] = version

    def get(self, version: int) -> Arrays:
        """Views of a version. RuntimeError if it is not there, whole."""
        if self._versions[version % 2] != version:
            raise RuntimeError(f"Version {version} of a learner's weights is not in its outbox.")
        return self._halves[version % 2]


class LearnerHost:
    """The brains of some agents. Plans are read from one shared block, numbers are written to another."""

    def __init__(self, algorithms: Mapping[Agent, Algorithm], block: SharedBlock, forms: Mapping[Agent, Form]) -> None:
        self._brains = {agent: AgentParameters(algorithm, 0) for agent, algorithm in algorithms.items()}
        self._outboxes = {agent: Outbox(block, forms[agent]) for agent in algorithms}
        self._plans: SharedBlock | None = None

    def load(self, arrays: Mapping[Agent, Arrays]) -> None:
        """Have these numbers from now on."""
        for agent, own in arrays.items():
            self._brains[agent].load(own)

    def attach(self, block: SharedBlock) -> None:
        """Read plans there from now on."""
        self._plans = block

    def update(self, asks: Mapping[Agent, tuple[Sequence[Field], int]]) -> dict[Agent, UpdateReport]:
        """Learn from the plans that lie where `asks` says, and put out the version that it says.

        An agent whose update raises is as it was before, and so are its numbers in that version.
        """
        return {agent: self._update(agent, fields, version) for agent, (fields, version) in asks.items()}

    def _update(self, agent: Agent, fields: Sequence[Field], version: int) -> UpdateReport:
        assert self._plans is not None
        brain = self._brains[agent]
        report = try_update(brain, read_plan(self._plans, fields))
        self._outboxes[agent].put(version, brain.arrays())
        return report


def plan_arrays(one: Plan) -> Arrays:
    """A plan's arrays by names that tell them apart."""
    named: Arrays = {"picks": one.picks, "weights": one.weights}
    if one.learning_rate is not None:
        named["learning_rate"] = np.array(one.learning_rate)
    return named | {f"{part}.{name}": array for part in _PARTS for name, array in getattr(one, part).items()}


def read_plan(block: SharedBlock, fields: Sequence[Field]) -> Plan:
    """A plan that lies in shared memory."""
    arrays = {field.name: block.array(field.dtype, field.shape, field.offset) for field in fields}
    parts: dict[str, Arrays] = {
        part: {name.partition(".")[2]: array for name, array in arrays.items() if name.startswith(f"{part}.")}
        for part in _PARTS
    }
    rate = float(arrays["learning_rate"]) if "learning_rate" in arrays else None
    return Plan(parts["arrays"], arrays["picks"], arrays["weights"], parts["noise"], rate)


def write_plan(block: SharedBlock, fields: Sequence[Field], one: Plan) -> None:
    """Put a plan into shared memory."""
    arrays = plan_arrays(one)
    for field in fields:
        np.copyto(block.array(field.dtype, field.shape, field.offset), arrays[field.name])
