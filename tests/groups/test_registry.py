"""Environments by name."""

from __future__ import annotations

from typing import Any

import pytest

from parallel_envs.groups import BadSettings, EnvStateManager, known_env_types, register
from parallel_envs.groups.registry import env_type_named
from tests.groups.walks import Walk, configured, inputs


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("sokoban", Walk), "comes with this package"),
        (("", Walk), "is not a name"),
        ((3, Walk), "is not a name"),
        (("mine", Walk({})), "cannot be called"),  # type: ignore[arg-type]  # any object
        (("mine", Walk, dict), "Give a frozen dataclass"),
    ],
)
def test_what_cannot_be_registered(arguments: Any, text: str) -> None:
    with pytest.raises(BadSettings, match=text):
        register(*arguments)


def test_a_name_of_the_users_may_be_given_anew() -> None:
    register("walk", dict)
    assert env_type_named("walk").factory is dict
    assert known_env_types().count("walk") == 1


def test_unknown_names_are_told_with_the_nearest() -> None:
    with pytest.raises(BadSettings, match=r"Say `env_type: gymnasium` and `env_config: {id: FrozenLake-v1}`, or"):
        env_type_named("FrozenLake-v1")
    with pytest.raises(BadSettings, match=r"env_type='sokobahn' is unknown. Did you mean `sokoban`\?"):
        env_type_named("sokobahn")
    with pytest.raises(BadSettings, match="light='yes' of 'walk' is neither True nor False"):
        register("walk", dict, light="yes")  # type: ignore[arg-type]  # that is the point


def made_in_a_script() -> Any:
    """A class that no worker can import, as those of a user's script are."""

    class Local:
        def __init__(self, config: Any) -> None:
            self.word = config["word"]

        def reset(self, seed: int, mode: str) -> str:
            return str(self.word)

        def step(self, action: str) -> Any:
            return action * 2, 1.0, True, {"success": True}

    return Local


def test_classes_of_a_script_reach_the_workers() -> None:
    register("local", made_in_a_script())
    config = configured({"Walk": 1}, max_workers=1)
    config["custom_envs"]["Walk"] = {"env_type": "local", "env_config": {"word": "hello"}}
    with EnvStateManager(config) as manager:
        assert manager.reset()[0]["history"][0]["state"] == "hello"
        manager.step(inputs({0: ["ab"]}))
        assert manager.get_rollout_states()[0]["history"][-1]["state"] == "abab"
        assert manager.statuses[0].success


def test_a_misspelt_argument_is_told_with_the_right_one() -> None:
    with pytest.raises(TypeError, match=r"mod='val' is no argument of EnvStateManager. Did you mean mode=\?"):
        EnvStateManager({}, mod="val")  # type: ignore[call-arg]  # the mistake
    with pytest.raises(TypeError, match=r"lihgt=True is no argument of register. Did you mean light=\?"):
        register("mine", dict, lihgt=True)  # type: ignore[call-arg]  # the mistake
