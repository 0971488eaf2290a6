"""The cases: each function computes one result through public names only, so a rename inside cannot change it.

A case that must not depend on how it is run has `ways`: each way is computed and compared with the same recorded value.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import yaml
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from safetensors.numpy import load_file

from parallel_envs import ParallelEnvManager
from parallel_envs.evaluation import evaluate
from parallel_envs.groups import EnvStateManager
from parallel_envs.learners import DQNConfig, IndependentLearners, Learner, PPOConfig, SACConfig
from parallel_envs.meta import make_parallel_env
from parallel_envs.multiagent import MultiAgentEnvManager
from parallel_envs.rollouts import collect
from parallel_envs.seeding import SeedTree, env_seeds
from parallel_envs.tasks import CycleTasks
from parallel_envs.testing import InfoKind, RewardKind, ScriptedEnv
from parallel_envs.testing.families import GridNaviEnv, PointRobotEnv
from parallel_envs.testing.matrix_games import climbing
from parallel_envs.testing.scripted import Fault, FaultyEnv, Moment
from parallel_envs.testing.scripted_agents import ScriptedAgentsEnv, Stay

BACKENDS: tuple[dict[str, Any], ...] = (
    {"backend": "serial"},
    {"backend": "thread", "num_workers": 2},
    {"backend": "process", "num_workers": 2},
    {"backend": "process", "num_workers": 3, "context": "fork"},
)
"""Ways to run the same environments."""


@dataclass(frozen=True)
class Case:
    """A result that is recorded: what to compute, and with which settings it must come out the same."""

    compute: Callable[..., Any]
    ways: tuple[dict[str, Any], ...] = ({},)


CASES: dict[str, Case] = {}


def golden(name: str, ways: Sequence[dict[str, Any]] = ({},), **settings: Any) -> Callable[[Any], Any]:
    """Add the decorated function to `CASES` under `name`, called with `settings` and one of `ways`."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        if name in CASES:
            raise ValueError(f"two golden cases have the name {name!r}")
        CASES[name] = Case(partial(function, **settings), tuple(ways))
        return function

    return add


def way_name(way: dict[str, Any]) -> str:
    return "-".join(str(value) for value in way.values()) or "as it is"


# ---- Gymnasium ------------------------------------------------------------------------------------------------------

MIXED = partial(
    ScriptedEnv,
    spaces.Dict({"place": spaces.Box(-1, 1, (2, 2)), "word": spaces.Text(4), "kind": spaces.Discrete(3, start=-1)}),
    spaces.Tuple([spaces.Discrete(3), spaces.Box(-1, 1, (2,))]),
    rewards=(RewardKind.FLOAT, RewardKind.INTEGER, RewardKind.SCALAR),
    infos=tuple(InfoKind),
)
ENVS: dict[str, Callable[[], gym.Env[Any, Any]]] = {
    "cartpole": partial(gym.make, "CartPole-v1"),
    "taxi": partial(gym.make, "Taxi-v4" if "Taxi-v4" in gym.registry else "Taxi-v3", max_episode_steps=9),
    "pendulum": partial(gym.make, "Pendulum-v1", max_episode_steps=12),
    "mixed": MIXED,
}


def trajectory(env: str, mode: AutoresetMode, num_steps: int = 40, **way: Any) -> Iterator[Any]:
    """Yield all that a manager of three environments returns."""
    with ParallelEnvManager([ENVS[env]] * 3, autoreset_mode=mode, **way) as envs:
        yield envs.reset(seed=11)
        envs.action_space.seed(5)
        for _ in range(num_steps):
            row = envs.step(envs.action_space.sample())
            yield row
            ended = row[2] | row[3]
            if mode is AutoresetMode.DISABLED and ended.any():
                yield envs.reset(options={"reset_mask": ended})


for env in ENVS:
    for mode in AutoresetMode:

        @golden(f"trajectory {env} {mode.value}", BACKENDS, env=env, mode=mode)
        def _trajectory(env: str, mode: AutoresetMode, **way: Any) -> Any:
            return list(trajectory(env, mode, **way))


@golden("calls and attributes", BACKENDS)
def _calls(**way: Any) -> Any:
    with ParallelEnvManager([MIXED] * 3, **way) as envs:
        envs.reset(seed=[3, 4, 5])
        envs.set_attr("mark", [1, "two", 3.0])
        return [envs.get_attr("mark"), envs.call("echo", 1, word="two"), envs.get_attr("episode_lengths")]


# ---- tasks and seeds ------------------------------------------------------------------------------------------------


@golden("seeds")
def _seeds() -> Any:
    tree = SeedTree(7)
    return {
        "env_seeds": env_seeds(7, 4),
        "children": [tree.child("a", number).seed() for number in range(3)],
        "families": [GridNaviEnv.sample_tasks(5, seed=3), PointRobotEnv.sample_tasks(3, seed=3)],
    }


@golden("tasks from a source", BACKENDS)
def _tasks(**way: Any) -> Any:
    goals = GridNaviEnv.sample_tasks(5, seed=1)
    found: list[Any] = []
    with ParallelEnvManager([GridNaviEnv] * 3, task_source=CycleTasks(goals, seed=7), **way) as envs:
        found.append(envs.reset(seed=2))
        envs.action_space.seed(3)
        for _ in range(40):
            found.append(envs.step(envs.action_space.sample()))
            found.append(envs.get_tasks())
    return found


# ---- rollouts -------------------------------------------------------------------------------------------------------


@golden("rollouts", [{"num_workers": 1}, {"num_workers": 3}])
def _rollouts(**way: Any) -> Any:
    goals = GridNaviEnv.sample_tasks(3, seed=0)
    with make_parallel_env(GridNaviEnv, episodes_per_task=2, seed=4, **way) as envs:
        drawn = collect(envs, None, num_rollouts=7, tasks=CycleTasks(goals, seed=1), random_actions=True, seed=2)
        chosen = collect(envs, lambda seen: int(seen[0] > 2), num_rollouts=3, tasks=goals, seed=3)
    return [
        [
            (one.id, one.task, one.task_id, one.seed, one.episode_index),
            (one.chain, one.actions, one.rewards, one.terminated, one.truncated),
        ]
        for one in [*drawn, *chosen]
    ]


# ---- PettingZoo -----------------------------------------------------------------------------------------------------

COMING_AND_GOING = partial(
    ScriptedAgentsEnv,
    [{"a": Stay(4), "b": Stay(2), "c": Stay(5, first=2)}, {"a": Stay(3), "c": Stay(3, ending="truncated")}],
    infos=(InfoKind.SCALARS,),
)
TOGETHER: dict[str, Any] = {"scripted": COMING_AND_GOING, "spread": "mpe2.simple_spread_v3"}


def many_agents(env: Any, num_steps: int = 30, **settings: Any) -> Iterator[Any]:
    """Yield all that a manager of three environments tells its agents."""
    given: dict[str, Any] = {"num_envs": 3, "env_kwargs": {"max_cycles": 9}} if isinstance(env, str) else {}
    with MultiAgentEnvManager(env if given else [env] * 3, **given, **settings) as envs:
        yield envs.reset(seed=11)
        source = np.random.default_rng(5)
        for _ in range(num_steps):
            yield envs.step({agent: source.integers(3, size=3) for agent in envs.agents_now})
            yield [dict(envs.alive), dict(envs.present)]


for env in TOGETHER:

    @golden(f"agents at once {env}", BACKENDS, env=env)
    def _at_once(env: str, **way: Any) -> Any:
        return list(many_agents(TOGETHER[env], **way))


@golden("agents in turn", BACKENDS)
def _in_turn(**way: Any) -> Any:
    return list(many_agents("mpe2.simple_spread_v3", turns="sequential", **way))


@golden("agents as rows", BACKENDS)
def _as_rows(**way: Any) -> Any:
    with MultiAgentEnvManager("mpe2.simple_spread_v3", num_envs=3, env_kwargs={"max_cycles": 6}, **way) as manager:
        rows = manager.as_vector_env()
        rows.action_space.seed(2)
        return [rows.reset(seed=3), *(rows.step(rows.action_space.sample()) for _ in range(15))]


# ---- learning -------------------------------------------------------------------------------------------------------

ALGORITHMS: dict[str, tuple[Any, str]] = {
    "ppo": (PPOConfig(rollout_length=16, minibatch_size=16, num_epochs=2, hidden=(8,)), "climbing"),
    "dqn": (DQNConfig(batch_size=8, learning_starts=20, hidden=(8,), num_steps=2), "climbing"),
    "sac": (SACConfig(batch_size=8, learning_starts=20, hidden=(8,)), "spread"),
}
FEW_STEPS = 160


def two_games(name: str) -> MultiAgentEnvManager:
    """Return two serial environments of two agents: a matrix game, or one whose actions are forces."""
    if name == "climbing":
        return MultiAgentEnvManager([partial(climbing, 5)] * 2, backend="serial")
    forces = {"N": 2, "max_cycles": 8, "continuous_actions": True}
    return MultiAgentEnvManager("mpe2.simple_spread_v3", num_envs=2, env_kwargs=forces, backend="serial")


def learnt(algorithm: str, update_mode: Any, **how: Any) -> Any:
    """Return the states of all agents, and their returns, after some updates."""
    config, env = ALGORITHMS[algorithm]
    with two_games(env) as envs, IndependentLearners(envs, config, update_mode=update_mode, seed=3, **how) as learners:
        learners.train(FEW_STEPS)
        return {"states": learners.states(), "returns": learners.returns()}


for algorithm in ALGORITHMS:
    for update_mode in ("sequential", "thread", "fused", "process"):

        @golden(f"{algorithm} {update_mode}", algorithm=algorithm, update_mode=update_mode)
        def _learnt(algorithm: str, update_mode: str) -> Any:
            return learnt(algorithm, update_mode)


@golden("overlap", [{"learn_in": "serial"}, {}])
def _overlap(**way: Any) -> Any:
    config, env = ALGORITHMS["ppo"]
    with two_games(env) as envs, IndependentLearners(envs, config, update_mode="sequential", seed=3) as learners:
        learners.train(FEW_STEPS, mode="overlap", **way)
        return {"states": learners.states(), "returns": learners.returns()}


META: dict[str, Any] = {
    "env": {
        "env_name": "GridNavi-v0",
        "max_rollouts_per_task": 2,
        "num_train_tasks": 6,
        "num_eval_tasks": 4,
        "num_parallel_workers": 2,
    },
    "train": {"num_iters": 2, "num_rollouts_per_iter": 4, "exact": True},
}


META_POLICIES: dict[str, Any] = {
    "ppo": {"arch": "memory", "algorithm": {"name": "ppo", "hidden": [8], "minibatch_size": 30, "memory_size": 6}},
    "dqn": {"arch": "markov", "algorithm": {"name": "dqn", "hidden": [8], "batch_size": 16, "buffer_size": 500}},
}

for algorithm in META_POLICIES:

    @golden(f"meta learner {algorithm}", algorithm=algorithm)
    def _meta(algorithm: str) -> Any:
        with Learner({**META, "policy": META_POLICIES[algorithm]}, seed=1) as learner:
            for _ in range(2):
                learner.collect_rollouts_parallel(4, parallel_env=learner.train_env_parallel)
                learner.update()
            found = learner.evaluate()
            return [learner.num_env_steps, found.curve, found.returns]


# ---- evaluation -----------------------------------------------------------------------------------------------------


@golden("evaluation", [{"jobs": 0}, {"jobs": 2}])
def _evaluation(**way: Any) -> Any:
    policies = {"upright": upright, "random": "random"}
    alone = evaluate("CartPole-v1", policies, episodes=3, seed=7, versus=False, **way)
    together = evaluate("mpe2.simple_spread_v3?max_cycles=6", policies, episodes=3, seed=7, **way)
    return [
        [one.mission, one.episode, one.seed, one.length, dict(one.returns), dict(one.assignment), one.score]
        for one in [*alone.episodes, *together.episodes]
    ]


def upright(observation: Any) -> int:
    """Push a pole towards the side to which it falls; any other observation: the sign of its third number."""
    return int(observation[2] > 0)


# ---- groups ---------------------------------------------------------------------------------------------------------

TAGS: dict[str, tuple[dict[str, Any], list[list[str]]]] = {
    "bandit": ({}, [["Phoenix"], ["Dragon"], []]),
    "frozen_lake": ({"size": 4}, [["Right", "Down"], ["Left"], ["Jump", "Down"]]),
    "sokoban": ({"dim_room": [6, 6], "num_boxes": 1, "observation_format": "grid_coord"}, [["Up", "Right"], ["Down"]]),
    "countdown": ({}, [["1 + 2"], ["nonsense"], ["(1 + 2) * 3"]]),
    "metamathqa": ({}, [["7"], ["12", "3"]]),
    "webshop": ({}, [["search[red shoes]"], ["click[b]"], ["click[buy now]"]]),
}
HOMES: tuple[dict[str, Any], ...] = (
    {"use_multiprocessing": False},
    {"max_workers": 1, "where": "process"},
    {"max_workers": 3, "where": "process"},
)

for tag in TAGS:

    @golden(f"groups {tag}", HOMES, tag=tag)
    def _groups(tag: str, **way: Any) -> Any:
        own, turns = TAGS[tag]
        where = {"where": way.pop("where")} if "where" in way else {}
        block = {"env_type": tag, "max_actions_per_traj": 4, "env_config": own, **where}
        groups = {"env_groups": 3, "group_size": 2, "env_configs": {"tags": ["It"], "n_groups": [3]}}
        manager = {"train": groups, "val": groups, "format_penalty": -0.1, **way}
        config = {"es_manager": manager, "custom_envs": {"It": block}}
        return [played(config, mode, turns) for mode in ("train", "val")]


def played(config: dict[str, Any], mode: Any, turns: list[list[str]]) -> Any:
    """Return the entries of two episodes and the metrics."""
    found: list[Any] = []
    with EnvStateManager(config, mode) as manager:
        for seed in (7, None):
            found.append(manager.reset(seed))
            for actions in turns:
                answers = [
                    {"env_id": env, "llm_response": "said", "llm_raw_response": "said", "actions": actions}
                    for env in (entry["env_id"] for entry in found[-1])
                ]
                if not answers:
                    break
                found.append(manager.step(answers))
            found += [manager.get_rollout_states(), manager.metrics()]
    return found


# ---- errors, keys and names of files --------------------------------------------------------------------------------


@golden("errors", BACKENDS[:3])
def _errors(**way: Any) -> Any:
    return [error_of(call, **way) for call in WRONG_CALLS]


WRONG_CALLS: tuple[Callable[[ParallelEnvManager], Any], ...] = (
    lambda envs: envs.step([0, 1]),
    lambda envs: envs.step([0, 1, 7]),
    lambda envs: envs.step_wait(),
    lambda envs: envs.reset(seed=[1, 2]),
    lambda envs: envs.reset(options={"reset_mask": [True]}),
    lambda envs: envs.reset(tasks=[1]),
    lambda envs: envs.call("no_such_method"),
    lambda envs: envs.get_attr("no_such_attribute"),
    lambda envs: envs.set_attr("mark", [1, 2]),
    lambda envs: envs.recv(),
    lambda envs: envs.close() or envs.reset(),  # type: ignore[func-returns-value, redundant-expr]
)


def error_of(call: Callable[[ParallelEnvManager], Any], **way: Any) -> Any:
    """Return the error that a call raises, on three environments that were reset and stepped once."""
    with ParallelEnvManager([ScriptedEnv] * 3, **way) as envs:
        envs.reset(seed=1)
        envs.step([0, 1, 2])
        try:
            call(envs)
        except Exception as error:  # noqa: BLE001  whichever it is
            return error
        return None


@golden("errors of environments", BACKENDS[:3])
def _faults(**way: Any) -> Any:
    found: list[Any] = []
    for fault in (Fault.EXCEPTION, Fault.UNPICKLABLE_EXCEPTION):
        breaking = partial(FaultyEnv, fault, Moment.STEP)
        with ParallelEnvManager([ScriptedEnv, breaking, ScriptedEnv], **way) as envs:
            try:
                envs.reset(seed=1)
                for _ in range(5):
                    envs.step([0, 1, 2])
            except Exception as error:  # noqa: BLE001  whichever it is
                found.append(error)
    return found


@golden("files of a run")
def _files() -> Any:
    settings = {"env": "CartPole-v1", "num_envs": 2, "num_workers": 1, "total_steps": 400}
    settings |= {"algorithm": {"name": "ppo", "rollout_length": 50, "minibatch_size": 50, "hidden": [8]}}
    with tempfile.TemporaryDirectory() as place:
        given, folder = Path(place) / "run.yaml", Path(place) / "run"
        given.write_text(yaml.safe_dump(settings))
        train = [sys.executable, "-m", "parallel_envs", "train", str(given), f"folder={folder}", "seed=3"]
        status = subprocess.run(train, capture_output=True, check=False).returncode
        names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
        return [status, ["events" if "tfevents" in name else name for name in names], keys_of(folder)]


def keys_of(folder: Path) -> Any:
    """Return the names of the arrays in each archive of the newest checkpoint, and the keys of a line of metrics."""
    newest = max((folder / "checkpoints").iterdir())
    arrays = {path.name: sorted(load_file(path)) for path in sorted(newest.rglob("*.safetensors"))}
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [arrays, [sorted(line) for line in lines[:2]]]
