"""Workloads of `python -m benchmarks eval`.

The policies that workers construct are defined here, too, so this module imports nothing heavy.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.plan import Needs
from parallel_envs.bench.envs import SpinEnv
from parallel_envs.evaluation.missions import Mission

SPREAD = "mpe2.simple_spread_v3"
_HERE = "benchmarks.eval_workloads"
_GRID_STEPS = 200


@dataclass(frozen=True, kw_only=True)
class EvalWork:
    """Missions, the number of episodes of each mission, and the policy.

    `preload` names the modules that all workers need and that take long to import. `peer` plays the same episodes
    without parallel_envs and returns their number; a work with a peer is compared with the peer, any other work with
    parallel_envs without workers. `at_least` is the required speed with two workers, as a multiple of that reference.
    """

    what: str
    missions: tuple[Mission, ...]
    episodes: int
    policy: str
    at_least: float
    max_steps: int = 1000
    preload: tuple[str, ...] = ()
    needs: Needs = ()
    peer: Callable[[], int] | None = None

    @property
    def num_episodes(self) -> int:
        return len(self.missions) * self.episodes


def spread_network(observation_space: Any, action_space: Any) -> Any:
    """Return an untrained network with two hidden layers of 64 units."""
    import torch

    from parallel_envs.policies.torch_policy import TorchPolicy

    sizes = (*observation_space.shape, 64, 64, int(action_space.n))
    layers: list[Any] = []
    for before, after in itertools.pairwise(sizes):
        layers += [torch.nn.Linear(before, after), torch.nn.Tanh()]
    return TorchPolicy(torch.nn.Sequential(*layers[:-1]), action_space)


def _spread(name: str, **kwargs: Any) -> Mission:
    return Mission(name=name, env=SPREAD, kwargs=kwargs)


def play_grids() -> int:
    """Play the episodes of the work `mettagrid` with MettaGrid's own loop."""
    from mettagrid.builder.envs import make_arena
    from mettagrid.policy.policy_spec import PolicySpec
    from mettagrid.runner.rollout import run_multi_episode_rollout

    work = EVAL_WORKS["mettagrid"]
    for mission in work.missions:
        config = make_arena(**mission.kwargs)
        config.game.max_steps = work.max_steps
        run_multi_episode_rollout(
            policy_specs=[PolicySpec(class_path="random")],
            assignments=[0] * config.game.num_agents,
            env_cfg=config,
            episodes=work.episodes,
            seed=42,
            max_action_time_ms=250,
        )
    return work.num_episodes


_NETWORK: Mapping[str, Any] = {
    "policy": f"{_HERE}:spread_network",
    "preload": ("torch",),
    "needs": (("mpe2", "mpe2"), ("torch", "parallel-envs[learn]")),
}

EVAL_WORKS = {
    "spread": EvalWork(
        what="8 missions x 8 episodes of simple_spread (200 steps), torch policies",
        missions=tuple(_spread(f"spread {n}", max_cycles=200, local_ratio=n / 10) for n in range(1, 9)),
        episodes=8,
        at_least=1.8,
        **_NETWORK,
    ),
    "unequal": EvalWork(
        what="8 missions x 10 episodes of simple_spread of 5 to 640 steps, torch policies",
        missions=tuple(_spread(f"{steps} steps", max_cycles=steps) for steps in (5, 10, 20, 40, 80, 160, 320, 640)),
        episodes=10,
        at_least=1.7,
        **_NETWORK,
    ),
    "short": EvalWork(
        what="24 episodes of 50 ms",
        missions=(Mission(name="spin", env=SpinEnv, kwargs={"microseconds": 5000}),),
        episodes=24,
        policy="random",
        max_steps=10,
        at_least=1.4,
    ),
    "mettagrid": EvalWork(
        what="MettaGrid arenas of 4, 8 and 16 agents x 8 episodes (200 steps), random",
        missions=tuple(
            Mission(name=f"arena {n}", env="mettagrid.builder.envs:make_arena", kwargs={"num_agents": n})
            for n in (4, 8, 16)
        ),
        episodes=8,
        policy="random",
        max_steps=_GRID_STEPS,
        preload=("mettagrid.runner.rollout", "mettagrid.envs.pettingzoo_env"),
        needs=(("mettagrid", "parallel-envs[mettagrid]"),),
        peer=play_grids,
        at_least=1.7,
    ),
}
"""Works by name."""
