"""What is misspelt is told with the nearest name, and what other packages call our arguments with ours."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("torch")

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
from parallel_envs.checks import (
    ABSENT,
    CALLED,
    advice,
    hint,
    is_one_of,
    nearest,
    nearest_few,
    suggests_keywords,
    unknown_keyword,
)
from parallel_envs.evaluation import Candidate, Mission, candidates_of, missions_of
from parallel_envs.evaluation.comparison import compare_results
from parallel_envs.groups import EnvStateManager, register
from parallel_envs.learners import DQNConfig, IndependentLearners, PPOConfig, SACConfig
from parallel_envs.learners.agent import configs_by_name
from parallel_envs.learners.config import BadSettings, TrainSettings, read_config, read_settings
from parallel_envs.learners.loops.loop import LoopOptions
from parallel_envs.learners.meta.config import TrainBlock, load_settings
from parallel_envs.rollouts import collect
from parallel_envs.tasks import CurriculumTasks, CycleTasks, FixedTasks, ScoredTasks, UniformTasks, split_tasks
from parallel_envs.vector.manager import ParallelEnvManager as VectorManager
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


# ---- names of other packages -----------------------------------------------------------------------------------------

OWNERS: dict[str, set[str]] = {
    **{kind.__name__: set(inspect.signature(kind).parameters) for kind in (PPOConfig, DQNConfig, SACConfig)},
    "ParallelEnvManager": set(inspect.signature(VectorManager).parameters),
    "MultiAgentEnvManager": {*inspect.signature(VectorManager).parameters},
    "TrainSettings": set(TrainSettings.model_fields),
    "TrainBlock": set(TrainBlock.model_fields),
    "IndependentLearners.train": {"total_steps", "on_update", *LoopOptions.__dataclass_fields__},
    "IndependentLearners": set(inspect.signature(IndependentLearners).parameters),
    "evaluate": set(inspect.signature(evaluate).parameters),
}

# What stable-baselines3, CleanRL, RLlib and Tianshou call the settings of their algorithms, other than objects.
EVERY = "learning_rate n_steps batch_size gamma"
OFF_POLICY = (
    "buffer_size learning_starts tau train_freq gradient_steps target_network_frequency "
    "target_network_update_freq n_step n_step_return_horizon"
)
PPO = (
    "n_epochs gae_lambda clip_range clip_range_vf normalize_advantage ent_coef vf_coef max_grad_norm use_sde "
    "sde_sample_freq target_kl policy_kwargs verbose device num_steps anneal_lr num_minibatches update_epochs "
    "norm_adv clip_coef clip_vloss minibatch_size cuda torch_deterministic track use_critic use_gae lambda_ "
    "use_kl_loss kl_coeff kl_target vf_loss_coeff entropy_coeff clip_param vf_clip_param grad_clip lr "
    "train_batch_size train_batch_size_per_learner num_epochs num_sgd_iter rollout_fragment_length lr_schedule "
    "eps_clip dual_clip value_clip advantage_normalization recompute_advantage return_scaling "
    "update_step_num_repetitions collection_step_num_env_steps"
)
DQN = (
    "target_update_interval exploration_fraction exploration_initial_eps exploration_final_eps max_grad_norm "
    "policy_kwargs verbose device start_e end_e train_frequency replay_buffer_config epsilon adam_epsilon "
    "grad_clip hiddens lr_schedule num_steps_sampled_before_learning_starts num_atoms v_min v_max noisy sigma0 "
    "dueling double_q lr target_update_freq eps_training is_double"
)
SAC = (
    "ent_coef target_entropy use_sde sde_sample_freq policy_lr q_lr alpha autotune twin_q initial_alpha actor_lr "
    "critic_lr alpha_lr critic1_lr critic2_lr start_timesteps"
)
RUN = "total_timesteps n_envs num_envs env_id num_env_runners num_envs_per_env_runner env_config seed num_training_envs"
ENVS = (
    "env_fns shared_memory copy context daemon worker observation_mode autoreset_mode max_concurrency n_envs env_id "
    "env_kwargs vec_env_cls vec_env_kwargs wrapper_class start_method num_vec_envs num_cpus multiprocessing num_envs "
    "vectorization_mode vector_kwargs worker_fn wait_num timeout env_config num_env_runners num_rollout_workers "
    "num_envs_per_env_runner num_envs_per_worker gym_vectorize_mode sample_timeout_s restart_failed_sub_environments "
    "restart_failed_env_runners max_num_env_runner_restarts num_workers"
)

OFFERED: list[tuple[Callable[..., Any], str, str]] = [
    (PPOConfig, f"{EVERY} {PPO}", "PPOConfig"),
    (DQNConfig, f"{EVERY} {OFF_POLICY} {DQN}", "DQNConfig"),
    (SACConfig, f"{EVERY} {OFF_POLICY} {SAC}", "SACConfig"),
    (partial(ParallelEnvManager, "CartPole-v1"), ENVS, "ParallelEnvManager"),
]


def test_targets_exist_in_all_that_are_said_to_have_them_and_other_names_are_nowhere_ours() -> None:
    for name, meanings in CALLED.items():
        for meaning in meanings:
            assert [owner for owner in meaning.of if meaning.ours not in OWNERS[owner]] == [], name
            assert not meaning.note or meaning.note.endswith(".")
        owners = [owner for meaning in meanings for owner in meaning.of]
        assert len(owners) == len(set(owners)), name  # a name of two meanings has one for each owner
    assert not ABSENT.keys() & CALLED.keys()
    assert [name for name in ABSENT for owned in OWNERS.values() if name in owned] == []


@pytest.mark.parametrize(("call", "names", "owner"), OFFERED)
def test_each_argument_of_another_package_is_ours_or_is_explained(
    call: Callable[..., Any], names: str, owner: str
) -> None:
    for name in set(names.split()) - OWNERS[owner]:
        with pytest.raises(
            TypeError, match=r"is no argument of .*\. (It is called `\w+` here\.|It is `device` of|.*: leave it out\.$)"
        ):
            call(**{name: 1})
    for name in set(RUN.split()) - OWNERS["TrainSettings"]:
        with pytest.raises(BadSettings, match=rf"`{name}` is unknown. It is called `\w+` here\."):
            of_run({name: 1})


def of_run(said: dict[str, Any]) -> None:
    read_settings({"env": "CartPole-v1", "total_steps": 8, **said})


def of_ppo(said: dict[str, Any]) -> None:
    read_config({"name": "ppo", **said}, "algorithm", configs_by_name(), outside=TrainSettings.model_fields)


def of_meta(train: dict[str, Any]) -> None:
    env = {"env_name": "AntDir-v0", "max_rollouts_per_task": 1, "num_train_tasks": 1, "num_eval_tasks": 1}
    load_settings({"env": env, "train": train})


@pytest.mark.parametrize(
    ("thing", "given", "text"),
    [
        (PPOConfig, {"gamma": 0.9}, r"^gamma=0\.9 is no argument of PPOConfig\. It is called `discount` here\.$"),
        (PPOConfig, {"n_steps": 8}, r"It is called `rollout_length` here\.$"),
        (DQNConfig, {"n_steps": 3}, r"It is called `num_steps` here\.$"),
        (PPOConfig, {"batch_size": 64}, r"`minibatch_size` here\. It counts the rows of one minibatch"),
        (PPOConfig, {"num_minibatches": 4}, r"`minibatch_size` here\. .* num_envs / num_minibatches"),
        (PPOConfig, {"train_batch_size": 4000}, r"`rollout_length` here\. .* divide .* of environments"),
        (PPOConfig, {"vf_coef": 0.5}, r"`value_weight` here\. Squared errors are halved here"),
        (PPOConfig, {"clip_vloss": True}, r"The values are not clipped here: leave it out\.$"),
        (PPOConfig, {"n_envs": 8}, r"It is `num_envs` of ParallelEnvManager, .* or `jobs` of evaluate\.$"),
        (PPOConfig, {"num_envs": 8}, r"It is `num_envs` of ParallelEnvManager, "),
        (PPOConfig, {"buffer_size": 8}, r"It is `buffer_size` of DQNConfig and SACConfig\.$"),
        (PPOConfig, {"LR": 1}, r"`learning_rate`"),
        (PPOConfig, {"gama": 1}, r"is no argument of PPOConfig\. Did you mean|Those are"),
        (SACConfig, {"ent_coef": 0.1}, r"`temperature` here\. It is the value at the beginning"),
        (DQNConfig, {"target_update_interval": 1000}, r"`target_interval` here\. It counts steps of the optimiser"),
        (MultiAgentEnvManager, {"env_fns": "a", "n_envs": 2}, r"no option of .*\. It is called `num_envs` here"),
        (ParallelEnvManager, {"start_method": "fork"}, r"It is called `context` here\.$"),
        (evaluate, {"n_eval_episodes": 2}, r"It is called `episodes` here\.$"),
        (IndependentLearners, {"gamma": 0.9}, r"`discount` of PPOConfig, DQN"),
        (of_run, {"gamma": 0.9}, r"`gamma` is unknown\. It is `algorithm\.discount` \(dqn, ppo, sac\)\.$"),
        (of_run, {"n_steps": 8}, r"`algorithm\.rollout_length` \(ppo\) or `algorithm\.num_steps` \(dqn, sac\)\.$"),
        (of_run, {"total_timesteps": 8}, r"`total_timesteps` is unknown\. It is called `total_steps` here\.$"),
        (of_run, {"num_envs_per_env_runner": 8}, r"`num_envs` here\. It counts all environments: multiply"),
        (of_run, {"cuda": True}, r"`cuda` is unknown\. It is called `device` here\. Give \"cuda\", \"cpu\" or"),
        (of_ppo, {"gamma": 0.9}, r"^`algorithm\.gamma` is unknown\. It is called `discount` here\.$"),
        (of_ppo, {"num_steps": 8}, r"It is called `rollout_length` here\.$"),
        (of_ppo, {"name": "sac", "tau": 0.1}, r"It is called `target_rate` here\.$"),
        (of_ppo, {"tau": 0.1}, r"It is `target_rate` of dqn\.$"),
        (of_ppo, {"n_envs": 2}, r"It is `num_envs` of the run, beside `algorithm`\.$"),
        (of_ppo, {"total_timesteps": 2}, r"It is `total_steps` of the run, beside `algorithm`\.$"),
        (of_ppo, {"use_sde": True}, r"no state-dependent exploration here: leave it out\.$"),
        (of_meta, {"total_timesteps": 5}, r"`train\.total_timesteps` is unknown\. It is called `n_env_steps_total`"),
    ],
)  # fmt: skip
def test_words_of_other_packages_are_told(thing: Callable[..., Any], given: dict[str, Any], text: str) -> None:
    if thing in (of_run, of_ppo, of_meta):
        with pytest.raises(BadSettings, match=text):
            thing(given)
    else:
        with pytest.raises(TypeError, match=text):
            thing(**given)
