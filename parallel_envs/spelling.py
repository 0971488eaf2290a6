"""Suggestions for unknown words: the nearest known word, and our name for a name of another package.

    PPOConfig(gamma=0.9)  # TypeError: gamma=0.9 is no argument of PPOConfig. It is called `discount` here.

`CALLED` maps names of stable-baselines3, CleanRL, RLlib, Tianshou, SuperSuit and Gymnasium's vector environments to
ours. Keywords, settings in YAML files and `key=value` on a command line get the same advice. No name is accepted as
another one: a wrong name stays an error.
"""

from __future__ import annotations

import functools
import reprlib
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar, cast

__all__ = [
    "ABSENT",
    "CALLED",
    "Meaning",
    "advice",
    "elsewhere",
    "here",
    "hint",
    "is_one_of",
    "meanings_elsewhere",
    "nearest",
    "nearest_few",
    "suggests_keywords",
    "told",
    "unknown_keyword",
]

Thing = TypeVar("Thing", bound=Callable[..., Any])
_LONG = 5
"""Shortest word that counts as the beginning of a longer known word."""
_ALIKE, _NEARLY_THE_SAME = 0.75, 0.9
"""Similarity from which a known word is suggested instead of the same name elsewhere in the package, and instead of the
explanation for a name of another package that has no counterpart here."""


def nearest(word: object, known: Iterable[object], cutoff: float = 0.6) -> str | None:
    """Return the known word most like this one, ignoring case, or None."""
    return next(iter(nearest_few(word, known, most=1, cutoff=cutoff)), None)


def nearest_few(word: object, known: Iterable[object], *, most: int, cutoff: float = 0.6) -> list[str]:
    """Return the known words most like this one, the nearest first."""
    import difflib  # late: needed only for an error

    by_lower, wrong = {str(one).lower(): str(one) for one in known}, str(word).lower()
    longer = [one for one in by_lower if len(wrong) >= _LONG and one.startswith(wrong)]  # an abbreviation
    close = difflib.get_close_matches(wrong, by_lower, n=most, cutoff=cutoff)
    return [by_lower[one] for one in dict.fromkeys([*sorted(longer, key=len), *close])][:most]


def is_one_of(value: object, words: Collection[str]) -> bool:
    """Return True if the value is one of these words. The value may be anything, also an array."""
    return isinstance(value, str) and value in words


def hint(word: object, known: Iterable[object]) -> str:
    """Return " Did you mean ...?" for the end of an error text, or "" if no known word is like this one."""
    close = nearest(word, known) if isinstance(word, str) else None
    return f" Did you mean {close!r}?" if close is not None else ""


def advice(word: object, known: Iterable[object]) -> str:
    """Return a sentence that names the nearest known word, our name for a foreign one, or all known words."""
    words = sorted(map(str, known))
    if standard := told(word, words):
        return standard
    close = nearest(word, words)
    return f"Did you mean `{close}`?" if close else f"Known are {', '.join(f'`{one}`' for one in words)}."


def unknown_keyword(owner: str, name: str, value: object, known: Collection[str], what: str = "argument") -> TypeError:
    """Return the error for a keyword argument that `owner` does not have.

    The error suggests, in this order: our name for a name of other packages, a very similar argument, the place where
    the name belongs, a similar argument, all arguments.
    """
    close = nearest(name, known)
    meant = told(name, known)
    if not meant and nearest(name, known, cutoff=_NEARLY_THE_SAME if name in ABSENT else _ALIKE) is None:
        meant = elsewhere(name, known)
    if not meant:
        meant = f"Those are {', '.join(known)}." if close is None else f"Did you mean {close}=?"
    return TypeError(f"{name}={reprlib.repr(value)} is no {what} of {owner}. {meant}")


def suggests_keywords(thing: Thing) -> Thing:
    """Make a function or class raise a TypeError with a suggestion for an unknown keyword.

    The signature stays, for readers and for tools. The function must not take keywords of any name (`**kwargs`).
    """
    if isinstance(thing, type):
        cast(Any, thing).__init__ = _checked(cast(Any, thing).__init__)
        return thing
    return cast(Thing, _checked(thing))


def _checked(function: Callable[..., Any]) -> Callable[..., Any]:
    code = function.__code__
    names = code.co_varnames[code.co_posonlyargcount : code.co_argcount + code.co_kwonlyargcount]
    known = frozenset(names)

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if not kwargs.keys() <= known:
            name = next(name for name in kwargs if name not in names)
            arguments = [one for one in names if one != "self"]
            is_init = function.__name__ == "__init__"  # of the class of args[0], or of a class that it inherits from
            owner = type(args[0]).__name__ if is_init else function.__name__
            raise unknown_keyword(owner, name, kwargs[name], arguments)
        return function(*args, **kwargs)

    return checked


PPO, DQN, SAC, META = "PPOConfig", "DQNConfig", "SACConfig", "TrainBlock"
REPLAY = DQN, SAC
ALL = PPO, DQN, SAC
RUN, TRAIN, EVALUATE = "TrainSettings", "IndependentLearners.train", "evaluate"
MANAGERS = "ParallelEnvManager", "MultiAgentEnvManager"
ENVS = *MANAGERS, RUN


@dataclass(frozen=True, slots=True)
class Meaning:
    """A possible meaning of a foreign name.

    Args:
        ours: Our name.
        of: Classes and functions with an argument or field of our name; `TrainSettings` stands for settings of a run.
        note: A sentence on how to convert the value, if the meaning differs.
    """

    ours: str
    of: tuple[str, ...]
    note: str = ""


_ALL_NETWORKS = "One rate holds for all networks of an agent."
_OF_ALL_ENVS = "It counts the steps of each environment: divide the number of all rows by the number of environments."
_MINIBATCHES = "It counts the rows of one minibatch: rollout_length * num_envs / num_minibatches."
_ROWS = "It counts the rows of one minibatch; the whole batch has rollout_length * num_envs rows."
_HALVED = "Squared errors are halved here, as in CleanRL: give twice the number of other packages."
_FALLS = "Give learning_rate_end=0.0 and learning_rate_updates=, the number of updates until then."
_FRACTION = "It counts steps of all environments together: give the fraction times total_steps."
_OPTIMISER = (
    "It counts steps of the optimiser; most other packages count steps of environments: divide by those between two "
    "steps of the optimiser, which are train_interval * num_envs / gradient_steps."
)
_EPSILON = "A schedule is epsilon_start, epsilon_end and exploration_steps."
_FIRST = "It is the value at the beginning: the temperature is always learnt."
_POSITIONAL = "It is the first argument."
_EACH = "It counts all environments: multiply the number of each worker by the number of workers."
_SHARES = "It is the exponent of the priorities; 0 draws all steps alike."

CALLED: dict[str, tuple[Meaning, ...]] = {
    # All algorithms
    "gamma": (Meaning("discount", ALL),),
    "discount_factor": (Meaning("discount", ALL),),
    **dict.fromkeys(("lr", "optim_lr", "step_size"), (Meaning("learning_rate", ALL),)),
    **dict.fromkeys(
        ("actor_lr", "critic_lr", "policy_lr", "q_lr", "alpha_lr", "critic1_lr", "critic2_lr"),
        (Meaning("learning_rate", ALL, _ALL_NETWORKS),),
    ),
    **dict.fromkeys(("anneal_lr", "lr_schedule", "lr_scheduler"), (Meaning("learning_rate_end", ALL, _FALLS),)),
    **dict.fromkeys(("adam_eps", "optimizer_eps"), (Meaning("adam_epsilon", ALL),)),
    **dict.fromkeys(("grad_clip", "max_grad", "clip_grad_norm"), (Meaning("max_grad_norm", ALL),)),
    **dict.fromkeys(("net_arch", "hidden_sizes", "hiddens", "fcnet_hiddens"), (Meaning("hidden", ALL),)),
    **dict.fromkeys(("activation_fn", "fcnet_activation"), (Meaning("activation", ALL),)),
    "policy_kwargs": (Meaning("hidden", ALL, "Its parts are settings of their own: hidden=, activation=."),),
    # PPO
    "n_steps": (Meaning("rollout_length", (PPO,)), Meaning("num_steps", REPLAY)),
    "num_steps": (Meaning("rollout_length", (PPO,)), Meaning("num_steps", REPLAY)),
    "rollout_fragment_length": (Meaning("rollout_length", (PPO,)),),
    "rollout_steps": (Meaning("rollout_length", (PPO,)),),
    **dict.fromkeys(
        ("train_batch_size", "train_batch_size_per_learner"),
        (Meaning("rollout_length", (PPO,), _OF_ALL_ENVS), Meaning("batch_size", REPLAY)),
    ),
    "collection_step_num_env_steps": (
        Meaning("rollout_length", (PPO,), _OF_ALL_ENVS),
        Meaning("train_interval", REPLAY, _OF_ALL_ENVS),
    ),
    "batch_size": (Meaning("minibatch_size", (PPO,), _ROWS), Meaning("batch_size", REPLAY)),
    "num_minibatches": (Meaning("minibatch_size", (PPO,), _MINIBATCHES),),
    "sgd_minibatch_size": (Meaning("minibatch_size", (PPO,)),),
    **dict.fromkeys(
        ("n_epochs", "update_epochs", "num_sgd_iter", "update_step_num_repetitions", "repeat_per_collect"),
        (Meaning("num_epochs", (PPO,)),),
    ),
    **dict.fromkeys(("lambda_", "lam", "lambda"), (Meaning("gae_lambda", (PPO,)),)),
    **dict.fromkeys(("clip_coef", "clip_param", "eps_clip", "clip_eps"), (Meaning("clip_range", (PPO,)),)),
    "ent_coef": (Meaning("entropy_weight", (PPO,)), Meaning("temperature", (SAC,), _FIRST)),
    **dict.fromkeys(("entropy_coeff", "entropy_coef"), (Meaning("entropy_weight", (PPO,)),)),
    **dict.fromkeys(("vf_coef", "vf_loss_coeff", "value_coef"), (Meaning("value_weight", (PPO,), _HALVED),)),
    **dict.fromkeys(
        ("norm_adv", "normalize_advantage", "advantage_normalization"), (Meaning("normalize_advantages", (PPO,)),)
    ),
    **dict.fromkeys(("norm_obs", "normalize_obs"), (Meaning("normalize_observations", (PPO,)),)),
    **dict.fromkeys(("norm_reward", "normalize_reward", "return_scaling"), (Meaning("normalize_returns", (PPO,)),)),
    "kl_target": (Meaning("target_kl", (PPO,), "An update ends when it is passed; the loss has no such part."),),
    # DQN and SAC
    **dict.fromkeys(("replay_size", "replay_buffer_size", "buffer_capacity"), (Meaning("buffer_size", REPLAY),)),
    "replay_buffer_config": (Meaning("buffer_size", REPLAY, "Its parts are settings of their own."),),
    "buffer_size": (Meaning("buffer_size", REPLAY),),
    **dict.fromkeys(
        ("num_steps_sampled_before_learning_starts", "start_timesteps", "learning_start", "warmup_steps"),
        (Meaning("learning_starts", REPLAY),),
    ),
    "learning_starts": (Meaning("learning_starts", REPLAY),),
    **dict.fromkeys(("train_freq", "train_frequency"), (Meaning("train_interval", REPLAY),)),
    **dict.fromkeys(
        ("update_step_num_gradient_steps_per_sample", "update_per_step"),
        (Meaning("gradient_steps", REPLAY, "Give the number times train_interval * num_envs."),),
    ),
    "tau": (Meaning("target_rate", REPLAY),),
    **dict.fromkeys(
        ("target_update_interval", "target_network_frequency", "target_network_update_freq", "target_update_freq"),
        (Meaning("target_interval", REPLAY, _OPTIMISER),),
    ),
    **dict.fromkeys(("n_step", "nstep", "n_step_return_horizon"), (Meaning("num_steps", REPLAY),)),
    **dict.fromkeys(("exploration_initial_eps", "start_e", "eps_start"), (Meaning("epsilon_start", (DQN,)),)),
    **dict.fromkeys(
        ("exploration_final_eps", "end_e", "eps_end", "eps_training"), (Meaning("epsilon_end", (DQN,)),)
    ),
    "exploration_fraction": (Meaning("exploration_steps", (DQN,), _FRACTION),),
    "epsilon": (Meaning("epsilon_start", (DQN,), _EPSILON),),
    **dict.fromkeys(("double_q", "is_double"), (Meaning("double", (DQN,)),)),
    **dict.fromkeys(
        ("prioritized_replay", "prioritized_replay_alpha"), (Meaning("prioritized", (DQN,), _SHARES),)
    ),
    "prioritized_replay_beta": (Meaning("prioritized_correction", (DQN,)),),
    **dict.fromkeys(("alpha", "initial_alpha"), (Meaning("temperature", (SAC,), _FIRST),)),
    # A run
    **dict.fromkeys(
        ("total_timesteps", "num_timesteps", "stop_timesteps"),
        (Meaning("total_steps", (RUN, TRAIN)), Meaning("n_env_steps_total", (META,))),
    ),
    "total_steps": (Meaning("total_steps", (RUN, TRAIN)), Meaning("n_env_steps_total", (META,))),
    "callback": (Meaning("on_update", (TRAIN,)),),
    "log_interval": (Meaning("log_every", (RUN,), "It counts steps of all environments together."),),
    **dict.fromkeys(
        ("save_freq", "checkpoint_freq", "checkpoint_frequency"),
        (Meaning("checkpoint_every", (RUN,), "It counts steps of all environments together."),),
    ),
    **dict.fromkeys(("tensorboard_log", "tb_log_name"), (Meaning("tensorboard", (RUN,), "Give true or false."),)),
    **dict.fromkeys(
        ("exp_name", "run_name", "save_path", "log_dir", "logdir", "output_dir"), (Meaning("folder", (RUN,)),)
    ),
    **dict.fromkeys(("algo", "algorithm_name"), (Meaning("algorithm", (RUN,), "Give {name: ppo}, or dqn or sac."),)),
    # Environments
    "n_envs": (Meaning("num_envs", ENVS), Meaning("jobs", (EVALUATE,))),
    "num_envs": (Meaning("num_envs", ENVS), Meaning("jobs", (EVALUATE,))),
    **dict.fromkeys(("num_vec_envs", "num_training_envs", "num_train_envs"), (Meaning("num_envs", ENVS),)),
    **dict.fromkeys(("num_envs_per_env_runner", "num_envs_per_worker"), (Meaning("num_envs", ENVS, _EACH),)),
    **dict.fromkeys(
        ("num_env_runners", "num_rollout_workers", "num_cpus", "n_workers", "max_concurrency"),
        (Meaning("num_workers", ENVS),),
    ),
    "num_workers": (Meaning("num_workers", ENVS), Meaning("jobs", (EVALUATE,))),
    "env_id": (Meaning("env_fns", MANAGERS, _POSITIONAL), Meaning("env", (RUN,))),
    "gym_id": (Meaning("env_fns", MANAGERS, _POSITIONAL), Meaning("env", (RUN,))),
    "env": (Meaning("env_fns", MANAGERS, _POSITIONAL), Meaning("env", (RUN,)), Meaning("missions", (EVALUATE,))),
    "envs": (Meaning("env_fns", MANAGERS, _POSITIONAL),),
    "env_config": (Meaning("env_kwargs", ENVS),),
    "start_method": (Meaning("context", (*MANAGERS, EVALUATE)),),
    "multiprocessing": (Meaning("backend", ENVS, 'True is "process", False is "serial".'),),
    **dict.fromkeys(
        ("vec_env_cls", "vectorization_mode", "gym_vectorize_mode", "worker_fn"),
        (Meaning("backend", ENVS, 'Give "process", "thread" or "serial".'),),
    ),
    "reset_mode": (Meaning("autoreset_mode", MANAGERS),),
    **dict.fromkeys(("timeout", "sample_timeout_s"), (Meaning("step_timeout", ENVS),)),
    **dict.fromkeys(
        ("restart_failed_sub_environments", "restart_failed_env_runners", "recreate_failed_env_runners"),
        (Meaning("on_failure", ENVS, 'True is "restart", False is "raise".'),),
    ),
    **dict.fromkeys(("max_num_env_runner_restarts", "max_num_worker_restarts"), (Meaning("max_restarts", ENVS),)),
    # Evaluations
    **dict.fromkeys(
        ("n_eval_episodes", "num_episodes", "n_episodes", "eval_episodes"), (Meaning("episodes", (EVALUATE,)),)
    ),
    "n_jobs": (Meaning("jobs", (EVALUATE,)), Meaning("num_workers", ENVS)),
    **dict.fromkeys(("model", "agent"), (Meaning("policies", (EVALUATE,)),)),
}  # fmt: skip
"""By the name that others use, what it means, the likeliest first."""

_ON_CPU = "Networks learn on the CPU here"
_NO_VALUE_CLIP = "The values are not clipped here"

ABSENT: dict[str, str] = {
    **dict.fromkeys(("clip_range_vf", "clip_vloss", "vf_clip_param", "value_clip"), _NO_VALUE_CLIP),
    **dict.fromkeys(("use_gae", "use_critic"), "Advantages are always generalised estimates with a critic"),
    **dict.fromkeys(("use_kl_loss", "kl_coeff"), "The loss has no KL term here; target_kl= ends an update early"),
    "dual_clip": "The surrogate is clipped on one side here",
    "recompute_advantage": "Advantages are computed once for each rollout",
    **dict.fromkeys(("use_sde", "sde_sample_freq"), "There is no state-dependent exploration here"),
    "autotune": "The temperature of SAC is always learnt",
    "twin_q": "SAC always has two critics",
    **dict.fromkeys(("num_atoms", "v_min", "v_max", "noisy", "sigma0"), "There is no distributional or noisy DQN here"),
    **dict.fromkeys(("device", "cuda", "num_gpus"), _ON_CPU),
    "torch_deterministic": "Runs are repeatable without it",
    **dict.fromkeys(("verbose", "progress_bar"), "Progress of a run goes to stderr, whatever is given"),
    **dict.fromkeys(("track", "wandb_project_name", "wandb_entity"), "Metrics go to the run's folder"),
    "worker": "The loop of a worker cannot be replaced; wrap the environments instead",
    **dict.fromkeys(("wrapper_class", "wrappers"), "Wrap each environment in the callable that makes it"),
    **dict.fromkeys(("vec_env_kwargs", "vector_kwargs"), "Give its parts as arguments of their own"),
    "wait_num": "Give all environments to `step`, or some of them to `send` and `recv`",
}  # fmt: skip
"""Names of other packages that have no counterpart here, each with the reason."""


def here(name: object, known: Collection[object]) -> Meaning | None:
    """Return the meaning of a foreign name among these words, or None."""
    return next((meaning for meaning in _meanings(name) if meaning.ours in known), None)


def told(name: object, known: Collection[object]) -> str:
    """Return a sentence with our name for a foreign one and the way to convert the value, or ""."""
    meaning = here(name, known)
    return "" if meaning is None else f"It is called `{meaning.ours}` here.{meaning.note and f' {meaning.note}'}"


def meanings_elsewhere(name: object, known: Collection[object]) -> tuple[Meaning, ...]:
    """Return the meanings of a foreign name that are not among these words."""
    return tuple(meaning for meaning in _meanings(name) if meaning.ours not in known)


def elsewhere(name: object, known: Collection[object]) -> str:
    """Return a sentence that says where a foreign name belongs, or why there is no such setting, or ""."""
    told = [f"`{one.ours}` of {_listed(one.of)}" for one in meanings_elsewhere(name, known)]
    if told:
        return f"It is {' or '.join(told)}."
    reason = ABSENT.get(_plain(name))
    return f"{reason}: leave it out." if reason else ""


def _meanings(name: object) -> Iterator[Meaning]:
    yield from CALLED.get(_plain(name), ())


def _plain(name: object) -> str:
    return str(name).lower().replace("-", "_")


def _listed(names: Collection[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last
