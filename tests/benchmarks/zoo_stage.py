"""Multi-agent environments that keep a record, and a program that lets one contestant step them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.plan import run_steps
from benchmarks.zoo import (
    OURS_EACH,
    OURS_FEW,
    ZOO_PEERS,
    ManyAgents,
    OursBeneath,
    OursTogether,
    PlainLoop,
    make_zoo_workload,
)
from parallel_envs.bench.envs import EnvChoice
from parallel_envs.bench.runners import Runner, Workload

NUM_AGENTS = 3


class RecordingAgents(ManyAgents):
    """Episodes of `length` steps. Each call of `step` adds a line with all actions to `record`.

    A step when nobody is there is an error.
    """

    def __init__(self, length: int, record: Path) -> None:
        super().__init__(NUM_AGENTS)
        self.EPISODE_STEPS, self._record = length, record

    def step(self, actions: Mapping[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        if not self.agents:
            raise RuntimeError("stepped when nobody was there")
        pushes = [actions[agent].tolist() for agent in self.possible_agents]
        with self._record.open("a", encoding="utf-8") as file:
            file.write(f"{pushes}\n")
        return super().step(actions)


class LeavingAgents(ManyAgents):
    """Agent `i` leaves in step `i + 1`."""

    def __init__(self) -> None:
        super().__init__(NUM_AGENTS)

    def step(self, actions: Mapping[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        assert actions.keys() == set(self.agents)
        there, self.agents = self.agents, self.agents[1:]
        ends = {agent: agent not in self.agents for agent in there}
        seen = {agent: self._points[:, 0].repeat(2)[:4] for agent in there}
        return seen, dict.fromkeys(there, 1.0), ends, dict.fromkeys(there, False), {agent: {} for agent in there}


KINDS: dict[str, Callable[[Workload], Runner]] = {
    OURS_FEW: partial(OursTogether, num_workers=1),
    OURS_EACH: OursTogether,
    OursBeneath.name: OursBeneath,
    PlainLoop.name: PlainLoop,
    **{name: partial(peer, num_workers=2) for name, peer in ZOO_PEERS.items()},
}


def main(name: str, length: int, num_envs: int, steps: int, record: str) -> None:
    """Let one contestant step, and print how many steps it says it made."""
    choice = EnvChoice("recording", partial(RecordingAgents, length, Path(record)))
    contestant = KINDS[name](make_zoo_workload(choice, num_envs))
    contestant.load()
    contestant.open()
    sys.stdout.write(f"{run_steps(contestant.step, steps)}\n")
    contestant.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
