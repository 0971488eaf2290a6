"""What is misspelt is told with the nearest name: every argument of every public constructor and function."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from parallel_envs import (
    MultiAgentEnvManager,
    MultiEpisodeWrapper,
    ParallelEnvManager,
    VariBadWrapper,
    WrappedMultiAgentPolicy,
    env_seeds,
    evaluate,
    vector_entry_point,
)
from parallel_envs.evaluation import Candidate, Mission, candidates_of, missions_of
from parallel_envs.evaluation.comparison import compare_results
from parallel_envs.groups import EnvStateManager, register
from parallel_envs.learners import DQNConfig, IndependentLearners, PPOConfig, SACConfig
from parallel_envs.rollouts import collect
from parallel_envs.spelling import advice, hint, is_one_of, nearest, nearest_few, suggests_keywords, unknown_keyword
from parallel_envs.tasks import CurriculumTasks, CycleTasks, FixedTasks, ScoredTasks, UniformTasks, split_tasks
from parallel_envs.wrappers import (
    PerAgentAutoWrapper,
    PerAgentBatchWrapper,
    PerAgentGPUWrapper,
    PerAgentProcessWrapper,
    PerAgentSequentialWrapper,
    PerAgentThreadWrapper,
    PolicyPool,
    Rules,
    TorchPolicy,
)

SUGGESTING: list[Callable[..., Any]] = [
    *(ParallelEnvManager, MultiEpisodeWrapper, VariBadWrapper, WrappedMultiAgentPolicy, PolicyPool, Rules, TorchPolicy),
    *(PerAgentSequentialWrapper, PerAgentThreadWrapper, PerAgentProcessWrapper, PerAgentAutoWrapper),
    *(
        PerAgentBatchWrapper,
        PerAgentGPUWrapper,
        Mission,
        Candidate,
        evaluate,
        missions_of,
        candidates_of,
        compare_results,
    ),
    *(PPOConfig, DQNConfig, SACConfig, IndependentLearners, EnvStateManager, register, collect),
    *(CurriculumTasks, CycleTasks, FixedTasks, ScoredTasks, UniformTasks, split_tasks, env_seeds),
]


def test_advice_is_the_nearest_word_or_all() -> None:
    assert advice("wlak", ["walk", "run"]) == "Did you mean `walk`?"
    assert advice(3, ["walk", "run"]) == "Known are `run`, `walk`."


def test_a_word_that_was_not_written_to_its_end_comes_before_one_that_looks_like_it() -> None:
    assert nearest("max_actions", ["max_tokens", "max_actions_per_traj"]) == "max_actions_per_traj"
    assert nearest("max", ["max_tokens", "maximum"], cutoff=0.9) is None


def misspelt(name: str) -> str:
    """The last two letters change places, or the last one stands twice."""
    turned = name[:-2] + name[-1] + name[-2]
    return turned if turned != name else name + name[-1]


@pytest.mark.parametrize("thing", SUGGESTING, ids=lambda thing: thing.__name__)
def test_each_misspelt_argument_is_told_with_the_right_one(thing: Callable[..., Any]) -> None:
    names = list(inspect.signature(thing).parameters)
    assert names
    for name in names:
        text = rf"^{misspelt(name)}=3 is no argument of {thing.__name__}\. Did you mean {name}=\?$"
        with pytest.raises(TypeError, match=text):
            thing(**{misspelt(name): 3})


@pytest.mark.parametrize("name", ["num_envs", "turns", "num_workers", "backend", "task_setter"])
def test_the_options_of_managers_of_agents_are_told_too(name: str) -> None:
    wrong: dict[str, Any] = {misspelt(name): 3}
    with pytest.raises(TypeError, match=rf"=3 is no option of MultiAgentEnvManager\. Did you mean {name}=\?$"):
        MultiAgentEnvManager([], **wrong)


def test_settings_of_an_entry_point_are_looked_at_when_they_are_given() -> None:
    with pytest.raises(
        TypeError, match=r"num_worker=2 is no argument of ParallelEnvManager\. Did you mean num_workers"
    ):
        vector_entry_point("CartPole-v1", num_worker=2)  # type: ignore[call-arg]  # what this is about
    with pytest.raises(TypeError, match=r"num_envs=2 is no argument"):
        vector_entry_point("CartPole-v1", num_envs=2)  # type: ignore[call-arg]  # what this is about


def test_where_nothing_is_like_it_all_are_named() -> None:
    with pytest.raises(TypeError, match=r"^xyz=1 is no argument of env_seeds\. Those are seed, num_envs\.$"):
        env_seeds(xyz=1)  # type: ignore[call-arg]  # which is the mistake


def test_a_long_value_is_told_in_short() -> None:
    text = str(unknown_keyword("f", "taks", list(range(10_000)), ["tasks"]))
    assert text.startswith("taks=[0, 1, ")
    assert len(text) < 100


# ---- what stays as it was --------------------------------------------------------------------------------------------


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


def test_calls_go_through_as_they_are() -> None:
    assert (plain(1), plain(1, 5), plain(1, second=6, third=7)) == ((1, 2, 3), (1, 5, 3), (1, 6, 7))
    assert (Plain(1), Plain(first=1, second=2)) == (Plain(1, 2), Plain(1))


def test_what_python_says_of_other_mistakes_stays() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'first'"):
        plain()  # type: ignore[call-arg]  # which is the mistake
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'first'"):
        Plain(second=1)  # type: ignore[call-arg]  # which is the mistake
    with pytest.raises(TypeError, match=r"first=1 is no argument of plain\. Those are second, third"):
        plain(first=1)  # type: ignore[call-arg]  # it has a place and no name


def test_signature_and_words_stay() -> None:
    assert str(inspect.signature(plain)) == (
        "(first: 'int', /, second: 'int' = 2, *, third: 'int' = 3) -> 'tuple[int, int, int]'"
    )
    assert (plain.__doc__, plain.__name__, Plain.__doc__) == ("Its own words.", "plain", "Its own words.")
    assert list(inspect.signature(Plain).parameters) == ["first", "second"]
    assert inspect.signature(ParallelEnvManager).parameters["on_failure"].default == "raise"


def test_a_class_that_inherits_goes_by_its_own_name() -> None:
    with pytest.raises(TypeError, match="secnd=1 is no argument of Child"):
        Child(secnd=1)  # type: ignore[call-arg]  # which is the mistake


# ---- words -----------------------------------------------------------------------------------------------------------


def test_the_nearest_word() -> None:
    known = ("NextStep", "SameStep", "Disabled")
    assert nearest("next_step", known) == "NextStep"
    assert nearest("DISABLED", known) == "Disabled"
    assert nearest("zzz", known) is None
    assert nearest_few("Step", known, most=2, cutoff=0.5) == ["SameStep", "NextStep"]


def test_a_hint_is_a_sentence_or_nothing() -> None:
    assert hint("proces", ("process", "thread")) == " Did you mean 'process'?"
    assert [hint(odd, ("process", "thread")) for odd in ("zzz", 3, None, np.ones(2))] == [""] * 4


@pytest.mark.parametrize("odd", [np.ones(2), [], {}, None, 3, "c"])
def test_anything_may_be_asked_for_being_a_word(odd: object) -> None:
    assert not is_one_of(odd, ("a", "b"))
    assert is_one_of("a", ("a", "b"))


# ---- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: WrappedMultiAgentPolicy({}, "proces"), r"strategy='proces' is unknown\. .* Did you mean 'process'\?"),  # type: ignore[arg-type]  # which is the mistake
        (lambda: Rules(on_error="defalt"), r"on_error='defalt' is unknown\. .* Did you mean 'default'\?"),  # type: ignore[arg-type]  # which is the mistake
        (lambda: ScoredTasks([1], uniform_share=np.ones(1) * 2), r"uniform_share=array\(\[2\.\]\) is not a share"),  # type: ignore[arg-type]  # which is the mistake
        (lambda: env_seeds(1, 2.5), r"num_envs=2\.5 is not a number of environments"),  # type: ignore[arg-type]  # which is the mistake
        (lambda: env_seeds(1, -1), "num_envs=-1 is not a number of environments"),
    ],
)
def test_values_that_cannot_be(call: Callable[[], Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        call()
