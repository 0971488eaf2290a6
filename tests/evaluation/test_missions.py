"""Missions by name, with wildcards, in files, with a number of agents, and from MettaGrid's configurations."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import Mock

import gymnasium
import pytest

from parallel_envs.evaluation import BadEvaluation, Mission, evaluate, missions, missions_of
from parallel_envs.evaluation.missions import NUM_AGENTS, EnvMaker, MettaGridEnv, is_mettagrid_config
from parallel_envs.multiagent.aec import FastConversion, faster_conversion
from parallel_envs.multiagent.by_name import AGENT
from parallel_envs.policies import ScriptedAgent
from tests.evaluation.stages import Course, course_of

FILE = """
missions:
  spread:
    env: mpe2.simple_spread_v3
    kwargs: {max_cycles: 9}
    variants:
      two: {N: 2}
      four: {N: 4, max_cycles: 7}
  cart: {env: CartPole-v1}
sets:
  easy: [cart, "spread:t*"]
  all of it: [easy, spread]
  round: [about]
  about: [round]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "missions.yaml"
    path.write_text(FILE)
    return path


@pytest.mark.parametrize(
    "name", ["CartPole-v1", "mpe2.simple_v3", "mpe2/simple-v3", "tests.evaluation.stages:Course", "Pendulum-v1"]
)
def test_what_can_be_played_by_name(name: str) -> None:
    env = EnvMaker(*missions_of(name)).make()
    observations, _ = env.reset(seed=0)
    assert list(observations) == list(env.agents)
    env.close()


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ("CartPole-v*", ["CartPole-v0", "CartPole-v1"]),
        ("mpe2/simple_sp*", ["mpe2/simple_speaker_listener-v4", "mpe2/simple_spread-v3"]),
        (functools.partial(Course, length=3), ["Course"]),
        ({"mine": Course, "carts": "CartPole-v*"}, ["mine", "carts:CartPole-v0", "carts:CartPole-v1"]),
        ([Mission(name="m", env=Course), "CartPole-v1"], ["m", "CartPole-v1"]),
        # from the file
        ("{file}", ["spread:two", "spread:four", "cart"]),
        ("{file}:easy", ["cart", "spread:two"]),
        ("{file}:all of it", ["cart", "spread:two", "spread:four"]),
        ("{file}:spread", ["spread:two", "spread:four"]),
        ("{file}:*t*", ["spread:two", "cart"]),
    ],
)
def test_names_wildcards_and_sets_stand_for_missions(given: Any, names: list[str], file: Path) -> None:
    given = given.format(file=file) if isinstance(given, str) else given
    assert [mission.name for mission in missions_of(given)] == names


def test_keyword_arguments_stand_behind_a_question_mark_or_in_a_file(file: Path) -> None:
    name = "mpe2.simple_spread_v3?N=2&max_cycles=9&local_ratio=0.25"
    (mission,) = missions_of(name)
    kwargs = {"N": 2, "max_cycles": 9, "local_ratio": 0.25}
    assert mission == Mission(name=name, env="mpe2.simple_spread_v3", kwargs=kwargs)
    assert len(EnvMaker(mission).make().possible_agents) == 2
    assert [one.kwargs for one in missions_of("mpe2.simple_sp*?max_cycles=3")] == [{"max_cycles": 3}] * 2
    found = {mission.name: mission.kwargs for mission in missions_of(str(file))}
    assert found["spread:two"] == {"max_cycles": 9, "N": 2}
    assert found["spread:four"] == {"max_cycles": 7, "N": 4}
    for which, text in (("eazy", "Did you mean `easy`"), ("round", "contains itself")):
        with pytest.raises(BadEvaluation, match=text):
            missions_of(f"{file}:{which}")


def test_a_gymnasium_env_has_one_agent_and_a_vector_env_is_no_mission() -> None:
    env = EnvMaker(Mission(name="m", env=lambda: gymnasium.make("CartPole-v1"))).make()
    assert env.possible_agents == [AGENT]
    env.close()
    with pytest.raises(TypeError, match="Make one environment"):
        Mission(name="m", env=lambda: gymnasium.make_vec("CartPole-v1", num_envs=2)).make()
    assert missions_of("CartPole-v1", num_agents=1) == missions_of("CartPole-v1")


def test_aec_envs_are_played_in_turns_on_request_and_otherwise_by_a_conversion_found_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    env = EnvMaker(Mission(name="m", env="mpe2.simple_spread_v3", turns="sequential")).make()
    assert len(env.reset(seed=0)[0]) == 1
    env.close()
    tried = Mock(side_effect=faster_conversion)
    monkeypatch.setattr(missions, "faster_conversion", tried)
    maker = EnvMaker(*missions_of("mpe2.simple_v3"))
    made = [maker.make() for _ in range(3)]
    tried.assert_called_once()
    assert {type(env) for env in made} == {FastConversion}
    assert len({id(env.unwrapped) for env in made}) == 3


# ---- the number of agents, by whichever keyword the environment takes it ---------------------------------------------


@pytest.mark.parametrize("keyword", NUM_AGENTS)
def test_the_keyword_is_found_in_the_signature(keyword: str) -> None:
    known: dict[str, Any] = {"course_of": course_of}
    exec(f"def make(max_cycles=6, {keyword}=2): return course_of({keyword}, length=max_cycles)", known)
    (found,) = missions_of({"m": known["make"]}, num_agents=4)
    assert (found.name, found.kwargs) == ("m", {keyword: 4})
    assert len(evaluate({"m": known["make"]}, "noop", 1, num_agents=4).episodes[0].returns) == 4


@pytest.mark.parametrize(
    ("name", "keyword"),
    [
        ("mpe2.simple_spread_v3", "N"),
        ("pettingzoo.butterfly.pistonball_v6", "n_pistons"),  # which hides its keywords
        ("tests.evaluation.stages:hidden", "n_agents"),
        ("tests.evaluation.stages:hidden?length=3", "n_agents"),
    ],
)
def test_a_mission_by_name_is_called_as_if_its_name_had_said_it(name: str, keyword: str) -> None:
    pytest.importorskip(name.partition(":")[0])
    written = f"{name}{'&' if '?' in name else '?'}{keyword}=4"
    assert missions_of(name, num_agents=4) == missions_of(written) == missions_of(written, num_agents=4)


# ---- MettaGrid: with what its configurations are asked for, and the real thing where it is installed -----------------


class MettaGridConfig:
    """Stands for MettaGrid's."""

    map_seed: int | None = None


MettaGridConfig.__module__ = "mettagrid.config.mettagrid_config"


class Simulator:
    """Stands for MettaGrid's: counts the maps that it has made, and adds their number to the seed."""

    maps = 0

    def next_map_seed(self, base_seed: int) -> int:
        self.maps += 1
        return base_seed + self.maps - 1


class Env(Course):
    """Stands for MettaGrid's environment: makes a map when it is constructed, and another when it is reset."""

    made = closed = 0

    def __init__(self, simulator: Any, config: Any) -> None:
        super().__init__(agents=(0, 1))
        type(self).made += 1
        self.config, self.simulator = config, simulator
        simulator.next_map_seed(config.map_seed)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=1000 * self.simulator.next_map_seed(self.config.map_seed) + (seed or 0))

    def close(self) -> None:
        type(self).closed += 1


@pytest.fixture
def mettagrid(monkeypatch: pytest.MonkeyPatch) -> None:
    about = SimpleNamespace(num_agents=2, observation_space=Course().space, action_space=Course().action_space(0))
    contents: dict[str, dict[str, Any]] = {
        **{name: {} for name in ("mettagrid", "mettagrid.policy", "mettagrid.envs", "mettagrid.runner")},
        "mettagrid.policy.policy_env_interface": {"PolicyEnvInterface": Mock(from_mg_cfg=lambda config: about)},
        "mettagrid.envs.pettingzoo_env": {"MettaGridPettingZooEnv": Env},
        "mettagrid.runner.rollout": {"resolve_env_for_seed": lambda config, seed: SimpleNamespace(map_seed=seed)},
        "mettagrid.simulator": {"Simulator": Simulator},
    }
    for name, names in contents.items():
        module = ModuleType(name)
        vars(module).update(names)
        monkeypatch.setitem(sys.modules, name, module)
    Env.made = Env.closed = 0


def test_a_mettagrid_configuration_is_a_mission_whose_resets_follow_from_their_seeds(mettagrid: None) -> None:
    assert is_mettagrid_config(MettaGridConfig())
    assert not is_mettagrid_config(SimpleNamespace())
    grid = MettaGridEnv(MettaGridConfig())
    assert (grid.agents, grid.possible_agents) == ([], [0, 1])
    first, again, other = (grid.reset(seed=seed)[0][0].tolist() for seed in (3, 3, 4))
    assert first == again != other
    assert first == Course(agents=(0, 1)).reset(seed=1000 * 3 + 3)[0][0].tolist(), "the first map of the seed"
    grid.close()
    assert Env.made == Env.closed == 3
    found = [evaluate(Mission(name="arena", env=MettaGridConfig), ["random", "noop"], 3) for _ in range(2)]
    assert [set(record.returns) for record in found[0].episodes] == [{0, 1}] * 3
    assert found[0].failures == ()
    assert found[0] == found[1]


STEPS, NUM_PLAYERS = 60, 4


def chosen(values: list[int], num_actions: int) -> int:
    """An action by all tokens that an agent sees, so a map of another seed leads to other rewards."""
    return ((1103515245 * sum(values) + 12345) % 2**31 >> 8) % num_actions


def scripted(action_space: Any) -> Any:
    """The policy for `evaluate`, which sees arrays of tokens: a row is (place, feature, value), 255 as feature ends."""

    def act(seen: Any) -> int:
        rows = seen.tolist()
        end = next((number for number, row in enumerate(rows) if row[1] == 0xFF), len(rows))
        return chosen([row[2] for row in rows[:end]], int(action_space.n))

    return ScriptedAgent(act)


def rewarded(builder: str) -> Any:
    """A configuration of MettaGrid's in which every move that succeeds or fails shows in the rewards."""
    from mettagrid.builder import envs
    from mettagrid.config.game_value import Scope, StatValue
    from mettagrid.config.reward_config import reward

    config = getattr(envs, builder)(num_agents=NUM_PLAYERS)
    config.game.max_steps = STEPS
    config.game.agent.rewards = {
        name: reward(StatValue(name=f"action.move.{name}", scope=Scope.AGENT), weight=weight)
        for name, weight in (("success", 0.013), ("failed", -0.007))
    }
    return config


@pytest.mark.parametrize("builder", ["make_navigation", "make_arena"])
def test_episodes_are_those_that_mettagrid_plays_also_in_workers(builder: str) -> None:
    pytest.importorskip("mettagrid")
    from mettagrid.policy.policy import AgentPolicy, MultiAgentPolicy, PolicySpec
    from mettagrid.runner.rollout import run_episode_local
    from mettagrid.simulator import Action

    class Agent(AgentPolicy):  # type: ignore[misc]  # mettagrid need not be installed
        def __init__(self, info: Any) -> None:
            super().__init__(info)
            self.names = info.action_names

        def step(self, obs: Any) -> Any:
            return Action(name=self.names[chosen([int(token.value) for token in obs.tokens], len(self.names))])

    class Everyone(MultiAgentPolicy):  # type: ignore[misc]  # as above
        def agent_policy(self, agent_id: int) -> Any:
            return Agent(self._policy_env_info)

    vars(sys.modules[__name__])["Everyone"] = Everyone
    mission, policy = Mission(name="grid", env=lambda: MettaGridEnv(rewarded(builder))), {"it": f"{__name__}:scripted"}
    found = evaluate(mission, policy, 8)
    assert found == evaluate(mission, policy, 8, jobs=2)
    assert found.failures == ()
    for record in found.episodes:
        theirs, _ = run_episode_local(
            policy_specs=[PolicySpec(class_path=f"{__name__}.Everyone")],
            assignments=[0] * NUM_PLAYERS,
            env=rewarded(builder),
            seed=record.seed,
        )
        assert record.length == theirs.steps
        assert [record.returns[agent] for agent in range(NUM_PLAYERS)] == pytest.approx(theirs.rewards, abs=1e-4)
    assert len({record.score for record in found.episodes}) > 1, "maps differ"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "missions: {a: CartPole-v1}",
            "`missions.a: 'CartPole-v1'`: Input should be a block of settings. Did you mean ",
        ),
        ("missions: {a: CartPole-v1}", "Did you mean `missions.a: {env: CartPole-v1}`?"),
        ("missions: {a: {env: CartPole-v1, kwargs: fast}}", "`missions.a.kwargs: 'fast'`: Input should be a block of"),
        ("missions: {a: {env: CartPole-v1, kwarg: {}}}", "`missions.a.kwarg` is unknown. Did you mean `kwargs`?"),
    ],
)
def test_mistakes_in_a_file_say_how_it_is_written(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "missions.yaml").write_text(text)
    with pytest.raises(BadEvaluation) as caught:
        missions_of(str(tmp_path / "missions.yaml"))
    assert told in str(caught.value)
    assert ".name=" not in str(caught.value)  # an override of `train`, of which files of missions have none
