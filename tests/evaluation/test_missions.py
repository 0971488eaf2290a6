"""Missions by name, with wildcards, in files."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from parallel_envs.evaluation import BadEvaluation, Mission, missions, missions_of
from parallel_envs.evaluation.missions import EnvMaker
from parallel_envs.multiagent.aec import FastConversion, faster_conversion
from parallel_envs.multiagent.by_name import AGENT
from tests.evaluation.stages import Course

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
"""


def names(given: Any) -> list[str]:
    return [mission.name for mission in missions_of(given)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "missions.yaml"
    path.write_text(FILE)
    return path


# ---- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["CartPole-v1", "mpe2.simple_v3", "mpe2/simple-v3", "tests.evaluation.stages:Course", "Pendulum-v1"]
)
def test_what_can_be_played_by_name(name: str) -> None:
    (mission,) = missions_of(name)
    env = EnvMaker(mission).make()
    observations, _ = env.reset(seed=0)
    assert list(observations) == list(env.agents)
    env.close()


def test_keyword_arguments_stand_behind_a_question_mark() -> None:
    (mission,) = missions_of("mpe2.simple_spread_v3?N=2&max_cycles=9&local_ratio=0.25")
    assert mission == Mission(
        name="mpe2.simple_spread_v3?N=2&max_cycles=9&local_ratio=0.25",
        env="mpe2.simple_spread_v3",
        kwargs={"N": 2, "max_cycles": 9, "local_ratio": 0.25},
    )
    env = EnvMaker(mission).make()
    assert len(env.possible_agents) == 2


def test_wildcards_stand_for_all_that_fit() -> None:
    assert names("CartPole-v*") == ["CartPole-v0", "CartPole-v1"]
    spreads = missions_of("mpe2.simple_sp*?max_cycles=3")
    assert [mission.env for mission in spreads] == ["mpe2.simple_speaker_listener_v4", "mpe2.simple_spread_v3"]
    assert spreads[0].kwargs == {"max_cycles": 3}
    assert names("mpe2/simple_sp*") == ["mpe2/simple_speaker_listener-v4", "mpe2/simple_spread-v3"]


def test_callables_and_dicts() -> None:
    assert names(Course) == ["Course"]
    assert names(functools.partial(Course, length=3)) == ["Course"]
    assert names({"mine": Course, "carts": "CartPole-v*"}) == ["mine", "carts:CartPole-v0", "carts:CartPole-v1"]
    assert names([Mission(name="m", env=Course), "CartPole-v1"]) == ["m", "CartPole-v1"]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("CartPol-v1", "Did you mean 'CartPole-v1'"),
        ("mpe2.simple_spred_v3", "Did you mean 'mpe2.simple_spread_v3'"),
        ("simple_spread_v3", "Did you mean 'mpe2.simple_spread_v3'"),
        ("mpe2/simple_spred-v3", "Did you mean 'mpe2/simple_spread-v3'"),
        ("sisl/pursuit-v4", "Did you mean 'sisl/pursuit-v5'"),
        ("no.such.module:make", "no module 'no.such.module'"),
        ("no_such_thing_at_all", "is unknown"),
        ("Nothing*Fits", "No mission matches"),
        ("CartPole-v1?oops", "name\\?key=value"),
        ("CartPole-v1?a={", "is not YAML"),
        ([], "No mission was given"),
        ([3], "3 is not a mission"),
        (["CartPole-v1", "CartPole-v1"], "Two missions are called 'CartPole-v1'"),
        ("nothing.yaml", "cannot be read"),
    ],
)
def test_what_is_no_mission(given: Any, text: str) -> None:
    with pytest.raises(BadEvaluation, match=text):
        missions_of(given)


def test_turns_have_two_names() -> None:
    with pytest.raises(BadEvaluation, match="turns='all'"):
        Mission(name="m", env="CartPole-v1", turns="all")  # type: ignore[arg-type]  # what this is about


def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(missions, "PACKAGES", ("nobody_has_it",))
    with pytest.raises(BadEvaluation, match=r"is unknown\. Its package is not installed: pip install nobody_has_it\."):
        missions_of("nobody_has_it.some_world_v0")


# ---- files ----------------------------------------------------------------------------------------------------------


def test_a_file_holds_missions_with_variants(file: Path) -> None:
    found = {mission.name: mission for mission in missions_of(str(file))}
    assert list(found) == ["spread:two", "spread:four", "cart"]
    assert found["spread:two"].kwargs == {"max_cycles": 9, "N": 2}
    assert found["spread:four"].kwargs == {"max_cycles": 7, "N": 4}


@pytest.mark.parametrize(
    ("which", "expected"),
    [
        ("easy", ["cart", "spread:two"]),
        ("all of it", ["cart", "spread:two", "spread:four"]),
        ("spread", ["spread:two", "spread:four"]),
        ("spread:four", ["spread:four"]),
        ("*t*", ["spread:two", "cart"]),
    ],
)
def test_sets_names_and_wildcards_choose_from_a_file(file: Path, which: str, expected: list[str]) -> None:
    assert names(f"{file}:{which}") == expected


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("missions: {a: {env: CartPole-v1, kwarg: {}}}", "`missions.a.kwarg` is unknown. Did you mean 'kwargs'"),
        ("mission: {}", "`missions` is missing"),
        ("missions: {a: {}}", "`missions.a.env` is missing"),
        ("missions: {a: {env: CartPole-v9x}}", "mission 'a': The mission 'CartPole-v9x' is unknown"),
        ("[", "is not YAML"),
        ("", "`the file` is None, and must be a block: `missions: {cart:"),
        ("missions: {a: CartPole-v1}", "`missions.a` is 'CartPole-v1', and must be a block"),
        ("missions: {a: {env: CartPole-v1, turns: random}}", "turns='random' of the mission 'a' is unknown"),
    ],
)
def test_files_are_checked_word_by_word(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(BadEvaluation) as raised:
        missions_of(str(path))
    assert told in str(raised.value)
    assert str(path) in str(raised.value)


def test_a_set_that_is_not_there_or_holds_itself(file: Path) -> None:
    with pytest.raises(BadEvaluation, match="Did you mean 'easy'"):
        missions_of(f"{file}:eazy")
    file.write_text(FILE + "  round: [about]\n  about: [round]\n")
    with pytest.raises(BadEvaluation, match="contains itself"):
        missions_of(f"{file}:round")


# ---- environments ---------------------------------------------------------------------------------------------------


def test_a_gymnasium_env_has_one_agent() -> None:
    env = EnvMaker(Mission(name="m", env=lambda: gymnasium.make("CartPole-v1"))).make()
    assert env.possible_agents == [AGENT]
    env.close()


def test_a_vector_env_is_no_mission() -> None:
    with pytest.raises(TypeError, match="Make one environment"):
        Mission(name="m", env=lambda: gymnasium.make_vec("CartPole-v1", num_envs=2)).make()


def test_the_quicker_conversion_is_found_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Any] = []

    def tried_first(env: Any) -> Any:
        tried.append(env)
        return faster_conversion(env)

    monkeypatch.setattr(missions, "faster_conversion", tried_first)
    maker = EnvMaker(*missions_of("mpe2.simple_v3"))
    made = [maker.make() for _ in range(3)]
    assert len(tried) == 1
    assert {type(env) for env in made} == {FastConversion}
    assert len({id(env.unwrapped) for env in made}) == 3


def test_aec_envs_are_played_in_turns_on_request() -> None:
    maker = EnvMaker(Mission(name="m", env="mpe2.simple_spread_v3", turns="sequential"))
    env = maker.make()
    observations, _ = env.reset(seed=0)
    assert len(observations) == 1
    env.close()
