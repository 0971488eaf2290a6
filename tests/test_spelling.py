"""What is misspelt is told with the nearest name: every argument of every public constructor and function."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks.cli import app as bench
from parallel_envs import (
    MultiAgentEnvManager,
    MultiEpisodeWrapper,
    ParallelEnvManager,
    VariBadWrapper,
    WrappedMultiAgentPolicy,
    cli,
    env_seeds,
    evaluate,
    vector_entry_point,
    wrappers,
)
from parallel_envs.checks import advice, hint, is_one_of, nearest, nearest_few, suggests_keywords, unknown_keyword
from parallel_envs.evaluation import Candidate, Mission, candidates_of, missions_of
from parallel_envs.evaluation.comparison import compare_results
from parallel_envs.groups import EnvStateManager, register
from parallel_envs.learners import DQNConfig, IndependentLearners, PPOConfig, SACConfig
from parallel_envs.rollouts import collect
from parallel_envs.tasks import CurriculumTasks, CycleTasks, FixedTasks, ScoredTasks, UniformTasks, split_tasks
from parallel_envs.wrappers import PolicyPool, Rules, TorchPolicy

SUGGESTING: list[Callable[..., Any]] = [
    *(ParallelEnvManager, MultiAgentEnvManager, MultiEpisodeWrapper, VariBadWrapper, WrappedMultiAgentPolicy),
    *(PolicyPool, Rules, TorchPolicy),
    *(getattr(wrappers, f"PerAgent{kind}Wrapper") for kind in ("Sequential", "Thread", "Process", "Auto")),
    *(wrappers.PerAgentBatchWrapper, wrappers.PerAgentGPUWrapper),
    *(Mission, Candidate, evaluate, missions_of, candidates_of),
    *(PPOConfig, DQNConfig, SACConfig, IndependentLearners, EnvStateManager, register, collect, compare_results),
    *(CurriculumTasks, CycleTasks, FixedTasks, ScoredTasks, UniformTasks, split_tasks, env_seeds),
]


def misspelt(name: str) -> str:
    """The last two letters change places, or the last one stands twice."""
    turned = name[:-2] + name[-1] + name[-2]
    return turned if turned != name else name + name[-1]


@pytest.mark.parametrize("thing", SUGGESTING, ids=lambda thing: thing.__name__)
def test_each_misspelt_argument_is_told_with_the_right_one(thing: Callable[..., Any]) -> None:
    names, called = list(inspect.signature(thing).parameters), f"argument of {thing.__name__}"
    if thing is MultiAgentEnvManager:
        names, called = ["num_envs", "turns", "num_workers", "backend", "task_setter"], "option of MultiAgentEnvManager"
    assert names
    for name in names:
        first: list[Any] = [[]] if thing is MultiAgentEnvManager else []
        with pytest.raises(TypeError, match=rf"^{misspelt(name)}=3 is no {called}\. Did you mean {name}=\?$"):
            thing(*first, **{misspelt(name): 3})


@suggests_keywords
def plain(first: int, /, second: int = 2, *, third: int = 3) -> tuple[int, int, int]:
    """Its own words."""
    return first, second, third


@suggests_keywords
@dataclass(frozen=True, slots=True)
class Plain:
    """Its own words."""

    first: int
    second: int = 2


class Child(Plain):
    """Of another name."""


def test_calls_go_through_as_they_are_and_signature_and_words_stay() -> None:
    assert (plain(1), plain(1, 5), plain(1, second=6, third=7)) == ((1, 2, 3), (1, 5, 3), (1, 6, 7))
    assert (Plain(1), Plain(first=1, second=2)) == (Plain(1, 2), Plain(1))
    text = "(first: 'int', /, second: 'int' = 2, *, third: 'int' = 3) -> 'tuple[int, int, int]'"
    assert str(inspect.signature(plain)) == text
    assert (plain.__doc__, plain.__name__, Plain.__doc__) == ("Its own words.", "plain", "Its own words.")
    assert list(inspect.signature(Plain).parameters) == ["first", "second"]
    assert inspect.signature(ParallelEnvManager).parameters["on_failure"].default == "raise"


def test_the_nearest_word_and_what_is_said_of_it() -> None:
    known = ("NextStep", "SameStep", "Disabled")
    assert [nearest(word, known) for word in ("next_step", "DISABLED", "zzz")] == ["NextStep", "Disabled", None]
    assert nearest_few("Step", known, most=2, cutoff=0.5) == ["SameStep", "NextStep"]
    assert nearest("max_actions", ["max_tokens", "max_actions_per_traj"]) == "max_actions_per_traj"  # cut short
    assert nearest("max", ["max_tokens", "maximum"], cutoff=0.9) is None
    assert advice("wlak", ["walk", "run"]) == "Did you mean `walk`?"
    assert advice(3, ["walk", "run"]) == "Known are `run`, `walk`."
    assert hint("proces", ("process", "thread")) == " Did you mean 'process'?"
    assert [hint(odd, ("process", "thread")) for odd in ("zzz", 3, None, np.ones(2))] == [""] * 4
    assert is_one_of("a", ("a", "b"))
    odd_ones: list[Any] = [np.ones(2), [], {}, None, 3, "c"]
    assert not any(is_one_of(odd, ("a", "b")) for odd in odd_ones)
    text = str(unknown_keyword("f", "taks", list(range(10_000)), ["tasks"]))
    assert text.startswith("taks=[0, 1, ")
    assert len(text) < 100


NUM_WORKERS = r"num_worker=2 is no argument of ParallelEnvManager\. Did you mean num_workers"
MISTAKES: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    (vector_entry_point, {"env_id": "CartPole-v1", "num_worker": 2}, TypeError, NUM_WORKERS),
    (vector_entry_point, {"env_id": "CartPole-v1", "num_envs": 2}, TypeError, r"num_envs=2 is no argument"),
    (env_seeds, {"xyz": 1}, TypeError, r"^xyz=1 is no argument of env_seeds\. Those are seed, num_envs\.$"),
    (Child, {"secnd": 1}, TypeError, "secnd=1 is no argument of Child"),
    (plain, {}, TypeError, "missing 1 required positional argument: 'first'"),
    (Plain, {"second": 1}, TypeError, "missing 1 required positional argument: 'first'"),
    (plain, {"first": 1}, TypeError, r"first=1 is no argument of plain\. Those are second, third"),
    (WrappedMultiAgentPolicy, {"policy": {}, "strategy": "proces"}, ValueError, "is unknown.* Did you mean 'process'"),
    (Rules, {"on_error": "defalt"}, ValueError, r"on_error='defalt' is unknown\. .* Did you mean 'default'\?"),
    (ScoredTasks, {"tasks": [1], "uniform_share": np.ones(1) * 2}, ValueError, r"=array\(\[2\.\]\) is not a share"),
    (env_seeds, {"seed": 1, "num_envs": 2.5}, ValueError, r"num_envs=2\.5 is not a number of environments"),
    (env_seeds, {"seed": 1, "num_envs": -1}, ValueError, "num_envs=-1 is not a number of environments"),
]


def test_other_mistakes_are_told() -> None:
    for call, given, error, text in MISTAKES:
        with pytest.raises(error, match=text):
            call(**given)


EVAL = ("eval", "-m", "CartPole-v1", "-p", "random")


@pytest.mark.parametrize(
    ("app", "words", "meant"),
    [
        (cli.app, (*EVAL, "--format", "tabel"), "table"),
        (cli.app, (*EVAL, "--parallel-policy", "proces"), "process"),
        (cli.app, (*EVAL, "--turns", "sequental"), "sequential"),
        (cli.app, (*EVAL, "--record", "wrst"), "worst"),
        (bench, ("step", "--backend", "serail"), "serial"),
        (bench, ("step", "--peers", "gymnasum"), "gymnasium"),
        (bench, ("eval", "--works", "spred"), "spread"),
        (cli.app, (*EVAL, "--format", "xyz"), None),
    ],
)
def test_a_misspelt_value_of_a_command_is_told(app: Any, words: tuple[str, ...], meant: str | None) -> None:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 2, result.output
    told = " ".join(result.output.replace("│", " ").split())
    if app is cli.app:
        assert f"Invalid value for '{words[-2]}': '{words[-1]}' is not one of '" in told
    if meant is None:
        assert "'xyz' is not one of 'table', 'json', 'csv', 'yaml'." in told
        assert "Did you mean" not in told
    else:
        assert f"Did you mean '{meant}'?" in told
