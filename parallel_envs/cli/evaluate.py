"""`parallel-envs eval`."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
from typer.core import TyperCommand

from parallel_envs.choices import Recorded, Strategy, Turns
from parallel_envs.cli.deliveries import Deliveries, Format, show
from parallel_envs.cli.mistakes import plain_errors, trusted

if TYPE_CHECKING:
    from parallel_envs.evaluation import Candidate, EvaluationResult, Mission


_INTERRUPTED = 130  # what shells expect of a program that Ctrl-C has ended
_NO_LIMIT = 0.0
_PARALLEL = "--parallel-policy"
_OPTIONS = {
    "parallel_policy": _PARALLEL,
    "max_steps": "--steps",
    "proportions": "--proportions",
    "episodes": "--episodes",
    "jobs": "--jobs",
    "seed": "--seed",
    "turns": "--turns",
    "strategy": "--strategy",
}
"""What the arguments of `evaluate` are called here."""
_KEPT: dict[str, tuple[type, ...]] = {
    "jobs": (str,),
    "turns": (str,),
    "cogs": (int,),
    "strict": (bool,),
    "allow_late": (bool,),
    "format": (str,),
    "record": (str,),
    "videos": (str,),
    "save_episodes": (str,),
    "fail_below": (list,),
}
"""Options that the file keeps for `--resume` (`EvaluationResult.options`), with the types that they have there."""
_SETTINGS = {
    "episodes": "episodes",
    "seed": "seed",
    "steps": "max_steps",
    "parallel_policy": "parallel_policy",
    "strategy": "strategy",
    "action_timeout_ms": "action_timeout",
    "episode_timeout": "episode_timeout",
}
"""Options that are in the settings of the file, by the names that they have there."""


class EvalCommand(TyperCommand):
    """Lets `--parallel-policy` stand alone, as a flag, for `--parallel-policy auto`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        alone = {
            place
            for place, word in enumerate(args)
            if word == _PARALLEL and (place + 1 == len(args) or args[place + 1].startswith("-"))
        }
        given = [f"{word}=auto" if place in alone else word for place, word in enumerate(args)]
        return super().parse_args(ctx, given)


def evaluate(
    context: typer.Context,
    mission: Annotated[
        list[str] | None,
        typer.Option(
            "--mission",
            "-m",
            metavar="NAME",
            help="What to play, again for more: a PettingZoo module or id, a Gymnasium id, package.module:factory, "
            "./file.py:Class, each with ?key=value if need be; a wildcard (`mpe2.simple_*`); a file missions.yaml, or "
            "a set in it (missions.yaml:easy).",
        ),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy",
            "-p",
            metavar="SPEC",
            help="What acts: random, noop, package.module:Class, a folder, or class=C,data=D. Again for more: each is "
            "evaluated on its own, on the same episodes, and they stand side by side. With --versus they share the "
            "agents.",
        ),
    ] = None,
    episodes: Annotated[
        int, typer.Option("--episodes", "-e", min=1, metavar="N", help="How many of each mission.")
    ] = 10,
    cogs: Annotated[
        int | None,
        typer.Option(
            "--cogs",
            min=1,
            metavar="N",
            help="How many agents each mission is to have: as ?N=4, ?num_agents=4 and so on in its name, whichever "
            "keyword the mission has.",
        ),
    ] = None,
    jobs: Annotated[
        str,
        typer.Option(
            "--jobs",
            "-j",
            metavar="N|auto",
            help="How many processes work at most, for episodes and for agents together: episodes come first, and "
            "agents (--parallel-policy) share what is left. 0: episodes in this one, and agents in one for each core.",
        ),
    ] = "0",
    parallel_policy: Annotated[
        Strategy,
        typer.Option(
            _PARALLEL,
            metavar="HOW",
            help="How the agents of an episode act at once: sequential, thread, process, batch, gpu, or auto, which "
            "is meant where nothing follows.",
        ),
    ] = "sequential",
    strategy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="AGENT=HOW",
            help="The same for one agent, again for more. All others act as --parallel-policy says.",
        ),
    ] = None,
    action_timeout_ms: Annotated[
        float,
        typer.Option(
            min=0.0,
            metavar="MS",
            help="For an action; one that comes later is dropped, and scores then depend on the machine. 0: no limit.",
        ),
    ] = 0.0,
    episode_timeout: Annotated[
        float,
        typer.Option(min=0.0, metavar="SECONDS", help="An episode that takes longer fails. 0: no limit."),
    ] = 0.0,
    steps: Annotated[
        int, typer.Option("--steps", "-s", min=1, metavar="N", help="After so many an episode is over.")
    ] = 1000,
    turns: Annotated[
        Turns | None,
        typer.Option(metavar="HOW", help="AEC environments: simultaneous (if they can), or sequential, one by one."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Where everything random comes from.")] = 42,
    versus: Annotated[
        bool,
        typer.Option(
            "--versus",
            help="Several policies share the agents of each episode, which are dealt out anew in each; their rows are "
            "marked as mixed. `parallel-envs compare FILE` then has cross-play and Elo.",
        ),
    ] = False,
    proportions: Annotated[
        str | None,
        typer.Option(metavar="N,N", help="How many agents each policy gets, relative to the others: means --versus."),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first episode that fails.")] = False,
    allow_late: Annotated[
        bool, typer.Option("--allow-late", help="Exit with 0 also if actions were late (--action-timeout-ms).")
    ] = False,
    format: Annotated[  # noqa: A002  # the option's name
        Format, typer.Option(metavar="FORMAT", help="What is printed: table, json, csv or yaml.")
    ] = "table",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Written as its ending says: .json (kept up to date, can be resumed), .csv, .yaml, .txt.",
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A .json output that is not complete: play the rest, as the file says, and write it there. Options "
            "that are given besides replace those of the file, and are refused where numbers depend on them.",
        ),
    ] = None,
    record: Annotated[
        Recorded | None,
        typer.Option(metavar="WHICH", help="Videos of each mission's best, worst or median episode, or of all."),
    ] = None,
    videos: Annotated[Path, typer.Option(metavar="DIR", help="Where videos go.")] = Path("videos"),
    save_episodes: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep all that was seen and done, a .npz file for each episode.")
    ] = None,
    trust: Annotated[
        list[str] | None,
        typer.Option(
            "--trust",
            metavar="MODULE",
            help="A module whose classes and environments a file may name (a folder's policy.json, the file of "
            "--resume), again for more. Without it only this package's own are made from files.",
        ),
    ] = None,
    fail_below: Annotated[
        list[str] | None,
        typer.Option(
            metavar="METRIC=VALUE",
            help="Exit with 1 if mean, iqm, low (the lower end of the 95 %) or success of a policy is below; "
            "NAME:METRIC=VALUE for one mission or policy.",
        ),
    ] = None,
) -> None:
    """Play missions with policies, and say how well they did. The numbers are the same for any number of jobs.

    Progress goes to stderr, results to stdout. Exit codes: 0 done; 1 an episode failed, an action was late, a threshold
    was missed, or a file could not be written; 2 it cannot be done as asked, and nothing was played; 130 ended by
    Ctrl-C, with what was complete.

    Example: parallel-envs eval -m mpe2.simple_spread_v3 -p random --episodes 20 --jobs 4 --output results.json
    """
    if resume is None:
        _begin_early(jobs)
    from parallel_envs.cli.thresholds import BadThreshold, Threshold
    from parallel_envs.errors import ParallelEnvsError
    from parallel_envs.evaluation import BadEvaluation
    from parallel_envs.evaluation.evaluating import absolute_policies, absolute_words

    mistakes = BadEvaluation, BadThreshold, ParallelEnvsError, OSError
    said = {name: value for name, value in locals().items() if name in context.params}
    given = {name for name in said if _is_given(context, name)}
    with contextlib.ExitStack() as stack:
        with plain_errors(*mistakes, words=_OPTIONS):
            said["trust"] = trust = trusted(trust)
            earlier = None if resume is None else _earlier(resume)
            if earlier is not None:
                said |= _kept_options(earlier, given, str(resume))
                for name in {"mission", "policy"} - given:
                    _check_trusted(name, said[name], resume, trust)
                _begin_early(said["jobs"])
            if not said["mission"] or not said["policy"]:
                raise typer.BadParameter(_missing(said, earlier is not None))
            missions = _missions(said["mission"], said["cogs"], said["turns"], earlier)
            shares = _numbers(said["proportions"])
            candidates = stack.enter_context(_candidates(said["policy"], shares, earlier, trust))
            share = _share_agents(said, candidates, earlier)
            if len(candidates) > 1:
                typer.echo(_told_of_sharing(len(candidates), share), err=True)
            thresholds = [Threshold.parse(text) for text in said["fail_below"] or ()]
            names = [one.name for one in missions] + [one.name for one in candidates]
            for threshold in thresholds:
                threshold.check_name(names)
                threshold.check_missions(missions)
            deliveries = Deliveries(output or resume, said["save_episodes"], said["record"], said["videos"])
            deliveries.check()
            asked = {
                "missions": missions,
                "policies": candidates,
                "num_agents": said["cogs"],
                "versus": share,
                "jobs": _jobs(said["jobs"]),
                "strict": said["strict"],
                "resume": resume,
                "preload": slow_imports(candidates),
                "options": {
                    "mission": absolute_words(said["mission"]),
                    "policy": absolute_policies(said["policy"], [one.name for one in candidates]),
                    **_to_keep(said),
                },
                **_numbers_depend_on(said, given, earlier),
            }
            result, went_wrong = _played(deliveries, asked)
        show(result, said["format"])
        with plain_errors(*mistakes, words=_OPTIONS, exit_code=1):
            deliveries.make(result, missions, candidates)
    from parallel_envs.evaluation.statistics import late_actions_text

    missed = [told for threshold in thresholds for told in threshold.missed_by(result)]
    for line in missed:
        typer.echo(line, err=True)
    late, allowed = late_actions_text(result), said["allow_late"]
    if late is not None:
        typer.echo(f"{late}{'' if allowed else ' With --allow-late this is no error.'}", err=True)
    if result.missing:
        typer.echo(_how_to_go_on(result, deliveries, said), err=True)
    if result.interrupted and not went_wrong:
        raise typer.Exit(_INTERRUPTED)
    if went_wrong or missed or result.failures or not deliveries.complete or (late is not None and not allowed):
        raise typer.Exit(1)


def _share_agents(said: Mapping[str, Any], candidates: Sequence[Candidate], earlier: EvaluationResult | None) -> bool:
    """Return whether the policies share the agents of each episode. Proportions say so, too; else a file that is gone
    on with says what it was."""
    if said["versus"] or said["proportions"] is not None or any(one.proportion != 1 for one in candidates):
        return True
    return earlier is not None and earlier.settings.get("versus") is not False


def _told_of_sharing(number: int, share: bool) -> str:
    if share:
        return f"The {number} policies share the agents of each episode: their rows are mixed."
    return (
        f"Each of the {number} policies is evaluated on its own, on the same episodes. To have them share the agents "
        "of an episode, give --versus."
    )


def slow_imports(candidates: Sequence[Candidate]) -> tuple[str, ...]:
    """What every worker will need for these and takes seconds to import: it is imported once for all of them."""
    from parallel_envs.extras import is_installed
    from parallel_envs.policies.specs import TRAINED, PolicySpec

    home = TRAINED.partition(":")[0]
    specs = [one.source for one in candidates if isinstance(one.source, PolicySpec)]
    wanted = is_installed("torch")  # else the policy that needs it says so
    return ("torch",) if wanted and any(spec.class_path.partition(":")[0] == home for spec in specs) else ()


def _begin_early(jobs: str) -> None:
    """Have the process that workers are forked from load what they need, while this one still loads the same."""
    if jobs == "0":
        return
    from parallel_envs.engine import start_supervisor
    from parallel_envs.errors import WorkerStartError

    with contextlib.suppress(WorkerStartError, OSError):  # told when workers are started, if it matters then
        start_supervisor(preload=("parallel_envs.engine.worker", "parallel_envs.evaluation.player"))


def _played(deliveries: Deliveries, asked: dict[str, Any]) -> tuple[EvaluationResult, bool]:
    """What has come of it, and whether that went wrong: an episode failed with --strict, or the file is not there."""
    from parallel_envs.cli.progress import shown
    from parallel_envs.errors import EpisodeFailed
    from parallel_envs.evaluation import NotSaved
    from parallel_envs.evaluation import evaluate as play
    from parallel_envs.evaluation.mistakes import PolicyNeverPlays

    usual = warnings.showwarning

    def show_in_a_line(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, PolicyNeverPlays):
            typer.echo(str(message), err=True)
        else:
            usual(message, category, *where, **more)

    with shown() as progress, warnings.catch_warnings():
        warnings.simplefilter("always", PolicyNeverPlays)
        warnings.showwarning = show_in_a_line
        warnings.filterwarnings("ignore", r"[\d,]+ actions? (was|were) late", RuntimeWarning)  # said below the result
        try:
            result = play(
                trajectories=False if deliveries.save_episodes is None else deliveries.keep,
                save=deliveries.kept_up_to_date,
                progress=progress,
                **asked,
            )
        except (EpisodeFailed, NotSaved) as error:
            held: EvaluationResult = error.result
            typer.echo(str(error), err=True)
            return held, True
    return result, False


# ---- an evaluation that ended early -----------------------------------------------------------------------------


def _earlier(path: Path) -> EvaluationResult:
    from parallel_envs.evaluation.resuming import earlier_result

    found = earlier_result(path)
    assert found is not None, "there is a path"
    return found


def _is_given(context: typer.Context, name: str) -> bool:
    """Return whether the user has given this option: its value is not the default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _kept_options(earlier: EvaluationResult, given: Collection[str], where: str) -> dict[str, Any]:
    """Return the options that a file keeps, except those that are given on the command line now."""
    from parallel_envs.evaluation import BadEvaluation

    kept: dict[str, Any] = {}
    for name, kinds in {**_KEPT, "mission": (list, dict), "policy": (list, dict)}.items():
        value = earlier.options.get(name)
        if name in given or value is None:
            continue
        parts = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else [""]
        is_known = name != "format" or value in get_args(Format)
        if not isinstance(value, kinds) or not is_known or not all(isinstance(part, str) for part in parts):
            raise BadEvaluation(f"{where} is damaged: its option {name!r} is {value!r}. Give {_option(name)} besides.")
        kept[name] = Path(str(value)) if name in ("videos", "save_episodes") else value
    return kept


def _to_keep(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that the file is to keep, as values that JSON can hold."""
    found = {name: said[name] for name in _KEPT if said[name] is not None}
    return {name: str(value) if isinstance(value, Path) else value for name, value in found.items()}


def _missing(said: Mapping[str, Any], is_resumed: bool) -> str:
    options = [_option(name) for name in ("mission", "policy") if not said[name]]
    if is_resumed:
        return (
            f"The file {said['resume']} does not say in words what was evaluated: it was written by a program that "
            f"called `evaluate`. Give {' and '.join(options)} besides, or go on in that program (`resume=`)."
        )
    return f"Missing option '{options[0]}'. To go on with an evaluation that ended early, --resume FILE is enough."


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _how_to_go_on(result: EvaluationResult, deliveries: Deliveries, said: Mapping[str, Any]) -> str:
    from parallel_envs.shell_commands import as_argument, shell_command

    played = len(result.episodes)
    told = f"{played} of {played + len(result.missing)} episodes were played"
    if deliveries.kept_up_to_date is None:
        return f"{told}, and cannot be gone on with: there is no --output FILE.json."
    file = as_argument(deliveries.kept_up_to_date)
    modules = _modules_to_trust(said, deliveries.kept_up_to_date)
    words = ["eval --resume", file, *(f"--trust {shlex.quote(module)}" for module in modules)]
    command = shell_command("parallel-envs", "parallel_envs", " ".join(words))
    return f"{told}, which are kept. To play the rest: {command}"


def _check_trusted(option: str, named: Any, file: Path | None, trust: Sequence[str]) -> None:
    """Raise UntrustedName for missions and policies that only a results file names, if they may run foreign code."""
    from parallel_envs.errors import UntrustedName
    from parallel_envs.evaluation import BadEvaluation
    from parallel_envs.evaluation.mission_names import check_trusted
    from parallel_envs.policies.specs import PolicySpec
    from parallel_envs.trust import check_policy

    for text in (named.values() if isinstance(named, Mapping) else named) or ():
        if option == "mission":
            check_trusted(text, str(file), trust)
        else:
            try:
                spec = PolicySpec.parse(text, trust)
            except UntrustedName:
                raise
            except (TypeError, ValueError) as error:
                raise BadEvaluation(f"{file}: {error}") from None
            check_policy(spec.class_path, str(file), trust)


def _modules_to_trust(said: Mapping[str, Any], file: Path) -> list[str]:
    """Return the modules that `--resume FILE` must be told to trust, since the file alone names them then."""
    from parallel_envs.errors import UntrustedName

    modules: list[str] = list(said["trust"])
    for option in ("mission", "policy"):
        while True:
            try:
                _check_trusted(option, said[option], file, modules)
            except UntrustedName as error:
                if error.module not in modules:
                    modules.append(error.module)
                    continue
            break
    return modules


# ---- what the user said ------------------------------------------------------------------------------------------


def _missions(names: Any, cogs: int | None, turns: Turns | None, earlier: EvaluationResult | None) -> list[Mission]:
    """Return the missions; of an evaluation that is resumed with its own words, those that it had."""
    from parallel_envs.evaluation import missions_of
    from parallel_envs.evaluation.evaluating import absolute_words

    found = missions_of(names, cogs)
    if earlier is not None and absolute_words(names) == earlier.options.get("mission"):
        before = earlier.settings.get("missions")
        found = [mission for mission in found if not isinstance(before, dict) or mission.name in before]
    return found if turns is None else [dataclasses.replace(mission, turns=turns) for mission in found]


@contextlib.contextmanager
def _candidates(
    policies: Any, shares: list[float] | None, earlier: EvaluationResult | None, trust: Sequence[str]
) -> Iterator[list[Candidate]]:
    """Give the policies. Checkpoints are held until videos are made, too."""
    from parallel_envs.evaluation import candidates_of
    from parallel_envs.evaluation.checkpoints import holding

    found = candidates_of(policies, shares, trust)
    if earlier is not None and shares is None:
        told = earlier.settings.get("policies")
        before = {name: one for name, one in told.items() if "proportion" in one} if isinstance(told, dict) else {}
        known = [before.get(one.name, {"proportion": one.proportion})["proportion"] for one in found]
        found = [dataclasses.replace(one, proportion=share) for one, share in zip(found, known, strict=True)]
    with holding(found, None if earlier is None else earlier.settings) as held:
        yield held


def _numbers_depend_on(
    said: Mapping[str, Any], given: Collection[str], earlier: EvaluationResult | None
) -> dict[str, Any]:
    """Return the arguments of `evaluate` on which numbers depend: of an earlier result what is not given now."""
    told = {
        "episodes": said["episodes"],
        "seed": said["seed"],
        "parallel_policy": said["parallel_policy"],
        "strategy": _by_agent(said["strategy"]),
        "action_timeout": _seconds(said["action_timeout_ms"] / 1000),
        "episode_timeout": _seconds(said["episode_timeout"]),
        "max_steps": said["steps"],
    }
    if earlier is None:
        return told
    kept = [setting for option, setting in _SETTINGS.items() if option not in given]
    settings = earlier.settings
    return told | {name: settings[name] for name in (*kept, "lateness_budget", "info_keys") if name in settings}


def _jobs(text: str) -> int | str:
    if text == "auto":
        return text
    if not text.isdecimal():
        raise typer.BadParameter(f"--jobs {text!r} is neither a whole number from 0 up nor 'auto'.")
    return int(text)


def _by_agent(words: Sequence[str] | None) -> dict[str, str] | None:
    """Return the strategies of single agents; of what was given twice the last."""
    parts = [word.rpartition("=") for word in words or ()]
    if wrong := [word for word, (agent, _, name) in zip(words or (), parts, strict=True) if not agent or not name]:
        raise typer.BadParameter(f"--strategy {wrong[0]!r} has not the form AGENT=HOW, as agent_0=thread has.")
    return {agent: name for agent, _, name in parts} or None


def _numbers(text: str | None) -> list[float] | None:
    if text is None:
        return None
    try:
        return [float(part) for part in text.replace(":", ",").split(",")]
    except ValueError:
        raise typer.BadParameter(f"--proportions {text!r} are not numbers. Give one for each policy: 2,1.") from None


def _seconds(number: float) -> float | None:
    return None if number == _NO_LIMIT else number
