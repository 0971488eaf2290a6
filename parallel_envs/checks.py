"""Checks of arguments and settings, and the texts about mistakes in them.

    check_count("num_envs", num_envs)                # a number from 1 up, else TypeError or ValueError
    choice("backend", backend, words(Backend))       # one of some words, else the nearest word is suggested
    PPOConfig(gamma=0.9)                             # TypeError: gamma=0.9 is no argument of PPOConfig. It is called
                                                     # `discount` here.

`CALLED` maps names of stable-baselines3, CleanRL, RLlib, Tianshou, SuperSuit and Gymnasium's vector environments to
ours. Keywords, settings in YAML files and `key=value` on a command line get the same advice. No name is accepted as
another one: a wrong name stays an error.
"""

from __future__ import annotations

import functools
import math
import re
import reprlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeVar, cast

Thing = TypeVar("Thing", bound=Callable[..., Any])
_LONG = 5  # shortest word that counts as the beginning of a longer known word
_ALIKE, _NEARLY_THE_SAME = 0.75, 0.9
"""Similarity from which a known word is suggested instead of the same name elsewhere in the package, and instead of the
explanation for a name of another package that has no counterpart here."""


# ---- values ----------------------------------------------------------------------------------------------------------


def _is_real(value: Any) -> bool:
    return type(value) in (int, float) or (isinstance(value, Real) and not isinstance(value, bool))


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number of Python or NumPy. True and False are not numbers here."""
    return _is_real(value) and (isinstance(value, int) or math.isfinite(value))  # an int may be too large for a float


def is_whole(value: Any) -> bool:
    """Return whether a value is an integer of Python or NumPy. True and False do not count."""
    # The first comparison is for speed: seeds of every episode and environment are checked.
    return type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool))


def is_share(value: Any) -> bool:
    """Return whether a value is a number from 0 to 1."""
    return is_number(value) and 0 <= value <= 1


def check_whole(name: str, value: Any) -> None:
    """Raise TypeError unless the value is a whole number."""
    if not is_whole(value):
        raise TypeError(f"{name}={value!r} is not a whole number.")


def check_share(name: str, value: Any) -> None:
    """Raise TypeError unless the value is a number, and ValueError unless it is from 0 to 1."""
    if not _is_real(value):
        raise TypeError(f"{name}={value!r} is not a number.")
    if not is_share(value):
        raise ValueError(f"{name}={value!r} is not a number from 0 to 1.")


def check_count(name: str, value: Any, *, at_least: int = 1, at_most: int | None = None, what: str = "") -> None:
    """Raise unless the value is a whole number in these bounds. `what` says what `at_most` stands for."""
    check_whole(name, value)
    if value < at_least:
        raise ValueError(f"{name}={value} is too small. Give at least {at_least}.")
    if at_most is not None and value > at_most:
        raise ValueError(f"{name}={value} is more than {what}. Give at most {at_most}.")


def seconds(name: str, value: Any) -> float:
    """Return a duration of 0 seconds or more as a float, or raise ValueError."""
    if not _is_real(value) or not value >= 0:
        raise ValueError(f"{name}={value!r} is not a number of seconds from 0 up.")
    return float(value)


def optional_seconds(name: str, value: Any) -> float | None:
    """Return a duration above 0 seconds, or None for no limit (also for infinity)."""
    if value is None or (_is_real(value) and value == math.inf):
        return None
    if not seconds(name, value):
        raise ValueError(f"{name}={value!r} leaves no time at all. Give a number of seconds above 0, or None.")
    return float(value)


def optional_wait(timeout: Any) -> None:
    """Raise ValueError unless `timeout` is None or a duration of 0 seconds or more."""
    if timeout is not None:
        seconds("timeout", timeout)


def yes_or_no(name: str, value: Any) -> bool:
    """Return a bool, of NumPy too, as a bool of Python. Raise TypeError for anything else."""
    if type(value).__name__ not in ("bool", "bool_"):  # NumPy's, which is not imported here, by its name
        raise TypeError(f"{name}={value!r} is neither True nor False.")
    return bool(value)


def is_one_of(value: object, words: Collection[str]) -> bool:
    """Return True if the value is one of these words. The value may be anything, also an array."""
    return isinstance(value, str) and value in words


def choice(name: str, value: Any, choices: Iterable[str]) -> str:
    """Return the value if it is one of the words in `choices`, else raise ValueError."""
    known = tuple(choices)
    if not is_one_of(value, known):
        raise ValueError(
            f"{name}={value!r} is unknown. Choose one of {', '.join(map(repr, known))}.{hint(value, known)}"
        )
    return str(value)


# ---- the nearest right word ------------------------------------------------------------------------------------------


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


def similar_path(path: str | Path, is_meant: Callable[[Path], bool]) -> str:
    """Return " Did you mean ...?" with the path beside a missing one that is most like it; empty if there is none."""
    path = Path(path)
    try:
        names = [one.name for one in path.parent.iterdir() if is_meant(one)] if not path.exists() else []
    except (OSError, ValueError):  # no folder to look into, or a name that no file can have
        return ""
    close = nearest(path.name, names)
    return "" if close is None else f" Did you mean {str(path.parent / close)!r}?"


def hint(word: object, known: Iterable[object]) -> str:
    """Return " Did you mean ...?" for the end of an error text, or "" if no known word is like this one."""
    close = nearest(word, known) if isinstance(word, str) else None
    return f" Did you mean {close!r}?" if close is not None else ""


def advice(word: object, known: Iterable[object]) -> str:
    """Return a sentence that names the nearest known word, our name for a foreign one, or all known words."""
    words = sorted(map(str, known))
    if ours := our_name(word, words):
        return ours
    close = nearest(word, words)
    return f"Did you mean `{close}`?" if close else f"Known are {', '.join(f'`{one}`' for one in words)}."


def our_name(name: object, known: Collection[object]) -> str:
    """Return a sentence with our name for a foreign one and the way to convert the value, or ""."""
    for meaning in CALLED.get(_plain(name), ()):
        if meaning.ours in known:
            return f"It is called `{meaning.ours}` here.{meaning.note and f' {meaning.note}'}"
    return ""


def unknown_keyword(owner: str, name: str, value: object, known: Collection[str], what: str = "argument") -> TypeError:
    """Return the error for a keyword argument that `owner` does not have.

    The error suggests, in this order: our name for a name of other packages, a very similar argument, the place where
    the name belongs, a similar argument, all arguments.
    """
    close, meant, plain = nearest(name, known), our_name(name, known), _plain(name)
    alike = nearest(name, known, cutoff=_ALIKE)
    if plain in ABSENT:  # no abbreviation: `worker` is not meant as `worker_env`
        alike = nearest(name, [one for one in known if not one.startswith(name)], cutoff=_NEARLY_THE_SAME)
    if not meant and alike is None:
        places = [
            f"`{one.ours}` of {' and '.join(filter(None, [', '.join(one.of[:-1]), one.of[-1]]))}"
            for one in CALLED.get(plain, ())
        ]
        meant = f"It is {' or '.join(places)}." if places else _why_absent(name)
    if not meant:
        meant = f"Those are {', '.join(known)}." if close is None else f"Did you mean {close}=?"
    return TypeError(f"{name}={reprlib.repr(value)} is no {what} of {owner}. {meant}")


def right_setting(word: str, known: Collection[str], elsewhere: Mapping[str, str]) -> str:
    """Return advice for an unknown setting: our name for a foreign one, its right place, or the nearest known name.

    `known` are the settings of its block. `elsewhere` has other settings, and a text that names the place of each.
    """
    if ours := our_name(word, known):
        return ours
    if word in elsewhere:
        return f"It is {elsewhere[word]}."
    if places := {elsewhere[one.ours]: one.note for one in CALLED.get(_plain(word), ()) if one.ours in elsewhere}:
        return " ".join([f"It is {' or '.join(places)}.", *filter(None, dict.fromkeys(places.values()))])
    if reason := _why_absent(word):
        return reason
    close = nearest(word, [*known, *elsewhere])
    is_elsewhere = close is not None and close not in known
    return f"Did you mean {elsewhere[str(close)]}?" if is_elsewhere else advice(word, known)


def explain(
    mistake: Mapping[str, Any],
    right: Callable[[str], str],
    where: str = "",
    written: Callable[[str, str], str] = lambda name, word: "",
) -> str:
    """Return a mistake that pydantic found in the block `where` as a sentence or two.

    `right` returns advice for the path of an unknown setting: see `right_setting`. `written` returns how a word at the
    path of a block is to be written, such as `algorithm.name=ppo` for `algorithm: ppo`; empty if nothing is meant.
    """
    text, value, kind = mistake["msg"].removeprefix("Value error, "), mistake["input"], mistake["type"]
    name = ".".join([*([where] if where else []), *map(str, mistake["loc"])])
    if not mistake["loc"]:  # a text of the block itself, in sentences
        return f"`{where}`: {text}"
    if kind == "extra_forbidden":
        return f"`{name}` is unknown. {right(name)}"
    if kind == "missing":
        return f"`{name}` is missing."
    meant = ""
    if kind == "literal_error":
        meant = hint(value, re.findall(r"'(\w+)'", mistake["ctx"]["expected"]))
    elif kind == "tuple_type":
        meant = " Give a list, such as [64, 256]."
    elif kind in ("dict_type", "model_type"):
        text = "Input should be a block of settings"
        close = written(name, value) if isinstance(value, str) else ""
        meant = f" Did you mean `{close}`?" if close else ""
    return f"`{name}: {value!r}`: {text}.{meant}"


def suggests_keywords(thing: Thing) -> Thing:
    """Make a function or class raise a TypeError with a suggestion for an unknown keyword.

    The signature stays, for readers and for tools. The function must not take keywords of any name (`**kwargs`).
    """
    function = cast(Any, thing).__init__ if isinstance(thing, type) else thing
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

    if not isinstance(thing, type):
        return cast(Thing, checked)
    cast(Any, thing).__init__ = checked
    return thing


# ---- names of other packages -----------------------------------------------------------------------------------------

PPO, DQN, SAC = ("PPOConfig",), ("DQNConfig",), ("SACConfig",)
REPLAY, ALL = DQN + SAC, PPO + DQN + SAC
RUN, TRAIN, META, EVALUATE = ("TrainSettings",), ("IndependentLearners.train",), ("TrainBlock",), ("evaluate",)
LEARNERS = ("IndependentLearners",)
MANAGERS = "ParallelEnvManager", "MultiAgentEnvManager"
ENVS = MANAGERS + RUN


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

_FOREIGN_NAMES = {
    # All algorithms
    Meaning("discount", ALL): "gamma discount_factor",
    Meaning("learning_rate", ALL): "lr optim_lr step_size",
    Meaning("learning_rate", ALL, _ALL_NETWORKS): "actor_lr critic_lr policy_lr q_lr alpha_lr critic1_lr critic2_lr",
    Meaning("learning_rate_end", ALL, _FALLS): "anneal_lr lr_schedule lr_scheduler",
    Meaning("adam_epsilon", ALL): "adam_eps optimizer_eps",
    Meaning("max_grad_norm", ALL): "grad_clip max_grad clip_grad_norm",
    Meaning("hidden", ALL): "net_arch hidden_sizes hiddens fcnet_hiddens",
    Meaning("activation", ALL): "activation_fn fcnet_activation",
    Meaning("hidden", ALL, "Its parts are settings of their own: hidden=, activation=."): "policy_kwargs",
    # PPO
    Meaning("rollout_length", PPO): "n_steps num_steps rollout_fragment_length rollout_steps",
    Meaning("num_steps", REPLAY): "n_steps num_steps n_step nstep n_step_return_horizon",
    Meaning("rollout_length", PPO, _OF_ALL_ENVS):
        "train_batch_size train_batch_size_per_learner collection_step_num_env_steps",
    Meaning("minibatch_size", PPO, _ROWS): "batch_size",
    Meaning("batch_size", REPLAY): "train_batch_size train_batch_size_per_learner batch_size",
    Meaning("train_interval", REPLAY, _OF_ALL_ENVS): "collection_step_num_env_steps",
    Meaning("minibatch_size", PPO, _MINIBATCHES): "num_minibatches",
    Meaning("minibatch_size", PPO): "sgd_minibatch_size",
    Meaning("num_epochs", PPO): "n_epochs update_epochs num_sgd_iter update_step_num_repetitions repeat_per_collect",
    Meaning("gae_lambda", PPO): "lambda_ lam lambda",
    Meaning("clip_range", PPO): "clip_coef clip_param eps_clip clip_eps",
    Meaning("entropy_weight", PPO): "ent_coef entropy_coeff entropy_coef",
    Meaning("temperature", SAC, _FIRST): "ent_coef alpha initial_alpha",
    Meaning("value_weight", PPO, _HALVED): "vf_coef vf_loss_coeff value_coef",
    Meaning("normalize_advantages", PPO): "norm_adv normalize_advantage advantage_normalization",
    Meaning("normalize_observations", PPO): "norm_obs normalize_obs",
    Meaning("normalize_returns", PPO): "norm_reward normalize_reward return_scaling",
    Meaning("target_kl", PPO, "An update ends when it is passed; the loss has no such part."): "kl_target",
    # DQN and SAC
    Meaning("buffer_size", REPLAY): "replay_size replay_buffer_size buffer_capacity buffer_size",
    Meaning("buffer_size", REPLAY, "Its parts are settings of their own."): "replay_buffer_config",
    Meaning("learning_starts", REPLAY):
        "num_steps_sampled_before_learning_starts start_timesteps learning_start warmup_steps learning_starts",
    Meaning("train_interval", REPLAY): "train_freq train_frequency",
    Meaning("gradient_steps", REPLAY, "Give the number times train_interval * num_envs."):
        "update_step_num_gradient_steps_per_sample update_per_step",
    Meaning("target_rate", REPLAY): "tau",
    Meaning("target_interval", REPLAY, _OPTIMISER):
        "target_update_interval target_network_frequency target_network_update_freq target_update_freq",
    Meaning("epsilon_start", DQN): "exploration_initial_eps start_e eps_start",
    Meaning("epsilon_end", DQN): "exploration_final_eps end_e eps_end eps_training",
    Meaning("exploration_steps", DQN, _FRACTION): "exploration_fraction",
    Meaning("epsilon_start", DQN, _EPSILON): "epsilon",
    Meaning("double", DQN): "double_q is_double",
    Meaning("prioritized", DQN, _SHARES): "prioritized_replay prioritized_replay_alpha",
    Meaning("prioritized_correction", DQN): "prioritized_replay_beta",
    # A run
    Meaning("total_steps", RUN + TRAIN): "total_timesteps num_timesteps stop_timesteps total_steps",
    Meaning("n_env_steps_total", META): "total_timesteps num_timesteps stop_timesteps total_steps",
    Meaning("on_update", TRAIN): "callback",
    Meaning("log_every", RUN, "It counts steps of all environments together."): "log_interval",
    Meaning("checkpoint_every", RUN, "It counts steps of all environments together."):
        "save_freq checkpoint_freq checkpoint_frequency",
    Meaning("tensorboard", RUN, "Give true or false."): "tensorboard_log tb_log_name",
    Meaning("device", RUN + LEARNERS, 'Give "cuda", "cpu" or "auto".'):
        "cuda num_gpus num_gpus_per_learner use_cuda",
    Meaning("device", RUN + LEARNERS): "device",
    Meaning("folder", RUN): "exp_name run_name save_path log_dir logdir output_dir",
    Meaning("algorithm", RUN, "Give {name: ppo}, or dqn or sac."): "algo algorithm_name",
    # Environments
    Meaning("num_envs", ENVS): "n_envs num_envs num_vec_envs num_training_envs num_train_envs",
    Meaning("num_envs", ENVS, _EACH): "num_envs_per_env_runner num_envs_per_worker",
    Meaning("num_workers", ENVS):
        "num_env_runners num_rollout_workers num_cpus n_workers max_concurrency num_workers n_jobs",
    Meaning("jobs", EVALUATE): "n_envs num_envs num_workers n_jobs",
    Meaning("env_fns", MANAGERS, _POSITIONAL): "env_id gym_id env envs",
    Meaning("env", RUN): "env_id gym_id env",
    Meaning("missions", EVALUATE): "env",
    Meaning("env_kwargs", ENVS): "env_config",
    Meaning("context", MANAGERS + EVALUATE): "start_method",
    Meaning("backend", ENVS, 'True is "process", False is "serial".'): "multiprocessing",
    Meaning("backend", ENVS, 'Give "process", "thread" or "serial".'):
        "vec_env_cls vectorization_mode gym_vectorize_mode worker_fn",
    Meaning("autoreset_mode", MANAGERS): "reset_mode",
    Meaning("step_timeout", ENVS): "timeout sample_timeout_s",
    Meaning("on_failure", ENVS, 'True is "restart", False is "raise".'):
        "restart_failed_sub_environments restart_failed_env_runners recreate_failed_env_runners",
    Meaning("max_restarts", ENVS): "max_num_env_runner_restarts max_num_worker_restarts",
    # Evaluations
    Meaning("episodes", EVALUATE): "n_eval_episodes num_episodes n_episodes eval_episodes",
    Meaning("policies", EVALUATE): "model agent",
}  # fmt: skip
"""What other packages call each of our arguments. Where a name has several meanings, the likeliest comes first."""

CALLED: dict[str, tuple[Meaning, ...]] = {}  # by the name that others use, what it means
for _meaning, _names in _FOREIGN_NAMES.items():
    for _name in _names.split():
        CALLED[_name] = (*CALLED.get(_name, ()), _meaning)

_REASONS = {
    "clip_range_vf clip_vloss vf_clip_param value_clip": "The values are not clipped here",
    "use_gae use_critic": "Advantages are always generalised estimates with a critic",
    "use_kl_loss kl_coeff": "The loss has no KL term here; target_kl= ends an update early",
    "dual_clip": "The surrogate is clipped on one side here",
    "recompute_advantage": "Advantages are computed once for each rollout",
    "use_sde sde_sample_freq": "There is no state-dependent exploration here",
    "autotune": "The temperature of SAC is always learnt",
    "twin_q": "SAC always has two critics",
    "num_atoms v_min v_max noisy sigma0": "There is no distributional or noisy DQN here",
    "torch_deterministic": "Runs are repeatable without it",
    "track use_wandb wandb_project_name wandb_project wandb_entity": (
        "A run sends its metrics to W&B by its setting `writers: {wandb: {project: NAME, entity: NAME}}`"
    ),
    "verbose progress_bar": "Progress of a run goes to stderr, whatever is given",
    "worker": "The loop of a worker cannot be replaced; wrap the environments instead",
    "wrapper_class wrappers": "Wrap each environment in the callable that makes it",
    "vec_env_kwargs vector_kwargs": "Give its parts as arguments of their own",
    "wait_num": "Give all environments to `step`, or some of them to `send` and `recv`",
}
ABSENT = {name: reason for names, reason in _REASONS.items() for name in names.split()}
"""Names of other packages that have no counterpart here, each with the reason."""


def _plain(name: object) -> str:
    return str(name).lower().replace("-", "_")


def _why_absent(name: object) -> str:
    return f"{ABSENT[_plain(name)]}: leave it out." if _plain(name) in ABSENT else ""
