"""What cannot be evaluated is named before anything is played."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_envs.evaluation import BadEvaluation, Mission, candidates_of, evaluate, missions_of
from parallel_envs.evaluation.comparison import compare_results
from parallel_envs.evaluation.recordings import check_can_record
from parallel_envs.policies import NoopAgent, PolicySpec, load_policy
from tests.evaluation.stages import Counting, Course, NoReset, Together, Unmakeable, crowded

ODD = object()


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"episodes": 0}, "episodes=0 is not a whole number from 1 up"),
        ({"seed": -1}, "seed=-1"),
        ({"jobs": -1}, "jobs=-1"),
        ({"jobs": np.ones(2)}, "(?s)jobs=.* is not a whole number from 0 up nor 'auto'"),
        ({"max_steps": 0}, "max_steps=0"),
        ({"action_timeout": 0}, "action_timeout=0 is not a number of seconds"),
        ({"lateness_budget": float("nan")}, "lateness_budget=nan"),
        ({"episode_timeout": "soon"}, "episode_timeout='soon'"),
        ({"parallel_policy": "proces"}, r"parallel_policy='proces' is unknown\. .* Did you mean 'process'\?"),
        ({"strategy": {"red": "process"}, "jobs": 1}, "jobs=1 is one process"),
        ({"parallel_policy": True, "strategy": "batch"}, "both name a strategy for all agents"),
        ({"strategy": 3}, "strategy=3 is neither a name nor a dict"),
        ({"policies": Together(), "strategy": {"red": "process"}}, "share an object, but their strategies are"),
        ({"strategy": {"red": "proces"}}, "strategy='proces' of the agent 'red' is unknown.*Did you mean 'process'"),
        ({"strategy": {"rde": "thread"}}, "names the agent 'rde'.* are 'red', 'blue', 'green'. Did you mean 'red'"),
        ({"num_agents": 0}, "num_agents=0 is not a whole number from 1 up"),
        ({"info_keys": "score"}, "info_keys='score' is not a list of names"),
        ({"info_keys": [3]}, "info_keys=.3. is not a list"),
        ({"preload": "torch"}, "preload='torch' is not a list of names"),
        ({"preload": ["no_such_module"]}, "cannot be found"),
        ({"trajectories": 1}, "trajectories=1 is neither True nor False"),
        ({"strict": "yes"}, "strict='yes' is neither True nor False"),
        ({"versus": "no"}, "versus='no' is neither True nor False"),
        ({"save": 3}, "save=3 is not the path of a file"),
        ({"resume": ODD}, "resume=<object .*> is not the path of a file"),
        ({"progress": ODD}, r"progress=<object .*> is an object without begin\(work, done\) and note\(record\)"),
        ({"missions": "tests.evaluation.stages:Cuorse"}, r"has no attribute 'Cuorse'\. Did you mean 'Course'\?"),
        ({"missions": "MiniGrid-Nowhere-v0"}, "is unknown .*Write 'minigrid:MiniGrid-Nowhere-v0'"),
        ({"missions": {"empty": lambda: Course(agents=())}}, "The mission 'empty' begins without agents"),
        ({"policies": "tests.evaluation.stages:Countng"}, r"has no 'Countng', .*names\. Did you mean 'Counting'\?"),
        ({"policies": "randm"}, r"The policy 'randm' is unknown\. .* Did you mean 'random'\?"),
        ({"proportions": 1}, "proportions=1 are not 1 numbers. Give one for each policy"),
        ({"versus": False, "policies": ["random", "noop"], "proportions": [1, 1]}, r"each plays on its own"),
        # a policy that no agent would get
        ({"missions": "CartPole-v1", "policies": ["random", "noop"]}, "share at most 1 agents, so 'noop' would never"),
        ({"policies": ["random", "noop"], "proportions": [100, 1]}, "share at most 3 agents, so 'noop' would never"),
        # how many agents
        ({"missions": "CartPole-v1", "num_agents": 4}, "has one agent, and 4 are requested"),
        ({"num_agents": 4}, "takes no number of agents by any of the keywords .* agents, fatal_seed"),
        ({"missions": "mpe2.simple_spread_v3?N=3", "num_agents": 4}, "has N=3, not 4"),
        ({"missions": Mission(name="m", env=crowded, kwargs={"n_agents": 2}), "num_agents": 4}, "'m' has n_agents=2"),
        ({"missions": {"m": crowded}, "num_agents": 4}, r"'m' has 5 agents \(agent_0, .*\), and 4 are requested"),
    ],
)
def test_arguments_of_evaluate(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(BadEvaluation, match=text):
        evaluate(**{"missions": Course, "policies": "noop", "episodes": 1, **settings})


@pytest.mark.parametrize("jobs", [0, 1])
@pytest.mark.parametrize(
    ("mission", "policy", "text"),
    [
        (Course, lambda seen: "left", "'<lambda>' does not fit 'red' of 'Course': it returned 'left'"),
        (Course, lambda seen: 1 / 0, "raised ZeroDivisionError"),
        (Course, PolicySpec("tests.evaluation.stages:Failing", kwargs={"hwo": 1}), "raised TypeError"),
        ({"a": Unmakeable, "b": NoReset}, "noop", r"RuntimeError: no license(.|\n)*reset raised KeyError"),
        (Mission(name="m", env="CartPole-v1", kwargs={"gravity": 3}), "noop", "The mission 'm' cannot be made"),
    ],
)
def test_what_does_not_fit_is_found_by_a_rehearsal(jobs: int, mission: Any, policy: Any, text: str) -> None:
    with pytest.raises(BadEvaluation, match=text):
        evaluate(mission, policy, 3, jobs=jobs)


def test_what_cannot_be_sent_to_workers_is_named() -> None:
    class Locked(Counting):
        def __init__(self) -> None:
            super().__init__()
            self.lock = threading.Lock()

    class Unreadable(Counting):
        """Can be pickled, and not unpickled."""

        def __reduce__(self) -> Any:
            return int, ("not a number",)

    lock = threading.Lock()
    for mission, policy, text in (
        (Course, {"mine": Locked()}, r"policy 'mine' cannot be sent to workers: policy\.lock"),
        ({"m": lambda: Course(length=id(lock))}, "noop", "mission 'm' cannot be sent to workers"),
        (Course, {"it": Unreadable()}, r"Workers cannot start \(ValueError"),
    ):
        with pytest.raises(BadEvaluation, match=text):
            evaluate(mission, policy, 2, jobs=1)


CALLS: list[tuple[Callable[..., Any], tuple[Any, ...], str]] = [
    # missions
    (missions_of, ("mpe2.simple_spred_v3",), "Did you mean 'mpe2.simple_spread_v3'"),
    (missions_of, ("simple_spread_v3",), "Did you mean 'mpe2.simple_spread_v3'"),
    (missions_of, ("sisl/pursuit-v4",), "Did you mean 'sisl/pursuit-v5'"),
    (missions_of, ("no.such.module:make",), "no module 'no'"),
    (missions_of, ("Nothing*Fits",), "No mission matches"),
    (missions_of, ("CartPole-v1?oops",), "name\\?key=value"),
    (missions_of, ([],), "No mission was given"),
    (missions_of, ([3],), "3 is not a mission"),
    (missions_of, (["CartPole-v1", "CartPole-v1"],), "Two missions are called 'CartPole-v1'"),
    (missions_of, ("nothing.yaml",), "cannot be read"),
    (lambda turns: Mission(name="m", env="CartPole-v1", turns=turns), ("sequental",), "Did you mean 'sequential'"),
    (lambda turns: Mission(name="m", env="CartPole-v1", turns=turns), (np.ones(2),), "turns=.* of the mission 'm' is"),
    (lambda kwargs: Mission(name="m", env="CartPole-v1", kwargs=kwargs), (3,), "kwargs=3 of the mission 'm' is not a"),
    # policies
    (candidates_of, ([],), "No policy was given"),
    (candidates_of, ([NoopAgent],), "is not a policy"),
    (candidates_of, (["class=random,weight=2"],), "'weight'"),
    (candidates_of, ({1: "random", "1": "noop"},), "Two policies are called '1'"),
    # proportions
    (candidates_of, (["random", "noop"], [0, 0]), "above 0"),
    (candidates_of, (["random", "noop"], [1, float("nan")]), "above 0"),
    (candidates_of, (["random", "noop"], {"nop": 1}), "'nop'"),
    # videos
    (check_can_record, ("wrst",), r"record='wrst' is unknown\. .* Did you mean 'worst'\?"),
]


@pytest.mark.parametrize(("call", "arguments", "text"), CALLS)
def test_missions_policies_and_proportions(call: Callable[..., Any], arguments: tuple[Any, ...], text: str) -> None:
    with pytest.raises(BadEvaluation, match=text):
        call(*arguments)


def test_a_network_needs_a_policy_around_it_and_videos_need_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadEvaluation, match="TorchPolicy"):
        candidates_of(pytest.importorskip("torch").nn.Linear(2, 2))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BadEvaluation, match=r'pip install "parallel-envs\[video\]"'):
        check_can_record("best")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("missions: {a: {env: CartPole-v1, kwarg: {}}}", "`missions.a.kwarg` is unknown. Did you mean `kwargs`"),
        ("missions: {a: {}}", "`missions.a.env` is missing"),
        ("missions: {a: {env: CartPole-v9x}}", "mission 'a': The mission 'CartPole-v9x' is unknown"),
        ("[", "is not YAML"),
        ("", "holds NoneType, where settings"),
    ],
)
def test_files_of_missions_are_checked_word_by_word(tmp_path: Path, text: str, part: str) -> None:
    (path := tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(BadEvaluation, match=f"(?s){re.escape(str(path))}.*{re.escape(part)}"):
        missions_of(str(path))


def test_a_policy_that_is_compared_has_played() -> None:
    played = evaluate({"m": Course}, {"mine": lambda seen: 0}, 1)
    with pytest.raises(ValueError, match=r"first_policy='mien' played in no .* \['mine'\]\. Did you mean 'mine'\?"):
        compare_results(played, played, first_policy="mien")
    with pytest.raises(TypeError, match="second=3 is not an EvaluationResult"):
        compare_results(played, 3)  # type: ignore[arg-type]  # which is the mistake
    with pytest.raises(ValueError, match=r"has 'clas', which is none of .* Did you mean 'class'\?"):
        load_policy("clas=tests.cli.agents:Right")
