"""`parallel-envs eval`: play missions with policies and print the result, or resume an evaluation that ended early."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parallel_envs.choices import Recorded, Strategy, Turns
from parallel_envs.cli.outputs import (
    RARE,
    ExitCode,
    Format,
    Outputs,
    Threshold,
    console,
    json_text,
    plain_errors,
    stdout_kept_clean,
    summary_of,
    text_of,
    trusted,
)
from parallel_envs.commands import Command

if TYPE_CHECKING:
    from parallel_envs.evaluation import Candidate, EvaluationResult
    from parallel_envs.trace import Trace

_PARALLEL = "--parallel-policy"
_OPTIONS = {
    **{name: f"--{name}" for name in ("proportions", "episodes", "jobs", "seed", "turns", "strategy", "device")},
    "parallel_policy": _PARALLEL,
    "max_steps": "--steps",
}
"""Options by the names of the arguments of `evaluate`, which its errors use."""
_SETTINGS = {
    **{name: name for name in ("episodes", "seed", "parallel_policy", "strategy", "episode_timeout", "device")},
    "max_steps": "steps",
    "action_timeout": "action_timeout_ms",
}
"""The arguments of `evaluate` that numbers depend on, and their options. The results file has their values, too."""


@dataclasses.dataclass(frozen=True)
class KeptOptions:
    """The options that the results file keeps for `--resume` (`EvaluationResult.options`)."""

    mission: list[str] | dict[str, str] | None = None
    policy: list[str] | dict[str, str] | None = None
    cogs: int | None = None
    jobs: str | None = None
    turns: Turns | None = None
    strict: bool | None = None
    allow_late: bool | None = None
    format: Format | None = None
    record: Recorded | None = None
    videos: Path | None = None
    save_episodes: Path | None = None
    fail_below: list[str] | None = None


class EvalCommand(Command):
    """Reads `--parallel-policy` without a value as `--parallel-policy auto`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given = [
            f"{word}=auto" if word == _PARALLEL and (not after or after[0].startswith("-")) else word
            for word, after in ((word, args[place + 1 : place + 2]) for place, word in enumerate(args))
        ]
        return super().parse_args(ctx, given)


_MISSION = (
    "An environment, such as CartPole-v1 or missions.yaml. A Gymnasium id, a PettingZoo module or id, "
    "package.module:factory, ./file.py:Class, each with ?key=value if needed; a wildcard (`mpe2.simple_*`); a file "
    "missions.yaml, or a set in it (missions.yaml:easy). Give the option again for more."
)
_POLICY = (
    "A policy: random, noop, a run's folder, package.module:Class, or class=C,data=D. Give the option again for more: "
    "each is evaluated on its own, on the same episodes. With --versus they share the agents."
)
_COGS = "Number of agents of each mission: as ?N=4, ?num_agents=4 and so on in its name, by the mission's keyword."
_JOBS = (
    "The most processes that work, or auto: one for each core. For episodes and for agents together: episodes come "
    "first, and agents (--parallel-policy) share the rest. 0: episodes in this process, and agents in one for each "
    "core."
)
_HOW = (
    "How the actions of an episode's agents are computed: sequential, thread, process, batch, gpu, or auto, which is "
    "also meant without a value."
)
_DEVICE = (
    "Where the networks of policies are computed: cpu, cuda, cuda:1, mps, or auto (cuda if torch finds it here). Each "
    "of several --jobs has copies of its own there."
)
_LATE = "Time for an action. A later action is dropped, and scores then depend on the machine. 0: no limit."
_TURNS = "How AEC environments are played: simultaneous (if they can), or sequential, one agent after another."
_VERSUS = (
    "Several policies share the agents of each episode. They are dealt out anew in each; their rows are mixed. "
    "`parallel-envs compare FILE` then shows cross-play and Elo ratings."
)
_OUTPUT = "A file of the result: .json, .csv, .yaml or .txt. A .json file is kept up to date, and can be resumed."
_REPORT = "Write a page of the result: intervals, cross-play, failures and videos (extra `report`)."
_RESUME = (
    "Play the missing episodes of a .json output. They have the options in the file, and are written there. Other "
    "options replace those of the file, and are refused if numbers depend on them."
)
_TRUST = (
    "A module whose classes and environments a file may name (a folder's policy.json, the file of --resume); give the "
    "option again for more. Without it only this package's own are made from files."
)
_TRACE = "A file of a timeline, .json for ui.perfetto.dev: the rehearsals and episodes of each job."
_FAIL = (
    "Exit with 1 if a policy's figure is below: mean, iqm, low or success. `low` is the lower end of the 95 % "
    "interval. NAME:METRIC=VALUE is for one mission or policy."
)

Words = list[str] | None
Option = typer.Option


def evaluate(
    context: typer.Context,
    mission: Annotated[Words, Option("--mission", "-m", metavar="NAME", help=_MISSION)] = None,
    policy: Annotated[Words, Option("--policy", "-p", metavar="SPEC", help=_POLICY)] = None,
    episodes: Annotated[
        int, Option("--episodes", "-e", min=1, metavar="N", help="Number of episodes of each mission.")
    ] = 10,
    cogs: Annotated[int | None, Option("--cogs", min=1, metavar="N", rich_help_panel=RARE, help=_COGS)] = None,
    jobs: Annotated[str, Option("--jobs", "-j", metavar="N|auto", help=_JOBS)] = "0",
    parallel_policy: Annotated[
        Strategy, Option(_PARALLEL, metavar="HOW", rich_help_panel=RARE, help=_HOW)
    ] = "sequential",
    strategy: Annotated[
        Words,
        Option(
            metavar="AGENT=HOW",
            rich_help_panel=RARE,
            help="--parallel-policy for one agent; give the option again for more.",
        ),
    ] = None,
    device: Annotated[str, Option(metavar="DEVICE", rich_help_panel=RARE, help=_DEVICE)] = "cpu",
    action_timeout_ms: Annotated[float, Option(min=0.0, metavar="MS", rich_help_panel=RARE, help=_LATE)] = 0.0,
    episode_timeout: Annotated[
        float,
        Option(
            min=0.0,
            metavar="SECONDS",
            rich_help_panel=RARE,
            help="Time for an episode. A longer one fails. 0: no limit.",
        ),
    ] = 0.0,
    steps: Annotated[
        int, Option("--steps", "-s", min=1, metavar="N", help="An episode ends after this number of steps.")
    ] = 1000,
    turns: Annotated[Turns | None, Option(metavar="HOW", rich_help_panel=RARE, help=_TURNS)] = None,
    seed: Annotated[int, Option(min=0, metavar="N", help="All randomness follows from it.")] = 42,
    versus: Annotated[bool, Option("--versus", help=_VERSUS)] = False,
    proportions: Annotated[
        str | None,
        Option(
            metavar="N,N", rich_help_panel=RARE, help="Number of agents of each policy, in relation. Implies --versus."
        ),
    ] = None,
    strict: Annotated[
        bool, Option("--strict", rich_help_panel=RARE, help="Stop at the first episode that fails.")
    ] = False,
    allow_late: Annotated[
        bool,
        Option(
            "--allow-late", rich_help_panel=RARE, help="Exit with 0 also if actions were late (--action-timeout-ms)."
        ),
    ] = False,
    format: Annotated[  # noqa: A002  # the option's name
        Format, Option(metavar="FORMAT", help="Format of the printed result: table, json, csv or yaml.")
    ] = "table",
    output: Annotated[Path | None, Option("--output", "-o", metavar="FILE", help=_OUTPUT)] = None,
    resume: Annotated[Path | None, Option(metavar="FILE", help=_RESUME)] = None,
    record: Annotated[
        Recorded | None, Option(metavar="WHICH", help="Videos of each mission's best, worst or median episode, or all.")
    ] = None,
    videos: Annotated[Path, Option(metavar="DIR", rich_help_panel=RARE, help="The folder of videos.")] = Path("videos"),
    save_episodes: Annotated[
        Path | None,
        Option(
            metavar="DIR",
            rich_help_panel=RARE,
            help="Save observations, actions and rewards, a .npz file for each episode.",
        ),
    ] = None,
    trust: Annotated[Words, Option("--trust", metavar="MODULE", rich_help_panel=RARE, help=_TRUST)] = None,
    fail_below: Annotated[Words, Option(metavar="METRIC=VALUE", help=_FAIL)] = None,
    report: Annotated[Path | None, Option(metavar="FILE.html", help=_REPORT)] = None,
    quiet: Annotated[bool, Option("--quiet", "-q", help="Show no progress.")] = False,
    as_json: Annotated[bool, Option("--json", help="Print the figures of the table as one JSON document.")] = False,
    trace: Annotated[Path | None, Option(metavar="FILE.json", help=_TRACE)] = None,
) -> None:
    """Play missions with policies, and show how well they did. The numbers are the same for any number of jobs.

    Progress goes to stderr, results to stdout. Exit codes: 0 done; 1 an episode failed, an action was late, a threshold
    was missed, or a file could not be written; 2 it cannot be done as asked, and nothing was played; 130 ended by
    Ctrl-C, with the complete episodes.

    Examples:
      parallel-envs eval -m CartPole-v1 -p runs/cartpole -p random --output results.json
      parallel-envs eval -m CartPole-v1 -p runs/cartpole -e 50 --jobs auto --output trained.json
      parallel-envs eval --resume trained.json
    """
    if resume is None:
        _start_early(jobs)
    from parallel_envs.errors import ParallelEnvsError
    from parallel_envs.evaluation import BadEvaluation, missions_of
    from parallel_envs.evaluation.evaluate import earlier_result, late_actions_text, mission_texts, policy_texts
    from parallel_envs.evaluation.policies import held_checkpoints
    from parallel_envs.evaluation.records import BadDocument, read_as
    from parallel_envs.evaluation.tables import tables
    from parallel_envs.extras import is_installed

    mistakes = BadDocument, BadEvaluation, ParallelEnvsError, OSError
    values = {name: value for name, value in locals().items() if name in context.params}
    sources = {name: context.get_parameter_source(name) for name in values}
    given = {name for name, source in sources.items() if source is not None and source.name != "DEFAULT"}
    with contextlib.ExitStack() as stack:
        with plain_errors(*mistakes, words=_OPTIONS):
            values["trust"] = trust = trusted(trust)
            earlier = earlier_result(resume)
            if earlier is not None:
                options = {name: value for name, value in earlier.options.items() if name not in given}
                kept = read_as(KeptOptions, options, str(resume), "options")
                values |= {name: value for name, value in vars(kept).items() if value is not None}
                for name in {"mission", "policy"} - given:
                    _check_trusted(name, values[name], str(resume), trust)
                _start_early(values["jobs"])
            if as_json and "format" in given:
                raise typer.BadParameter("--json prints the figures, and --format every episode. Give one of them.")
            if missing := [f"--{name}" for name in ("mission", "policy") if not values[name]]:
                raise typer.BadParameter(
                    f"Missing option '{missing[0]}'. To resume an evaluation that ended early, --resume FILE is enough."
                    if earlier is None
                    else f"The file {resume} does not hold the texts of what was evaluated: a program that called "
                    f"`evaluate` wrote it. Add {' and '.join(missing)}, or resume it in that program (`resume=`)."
                )
            missions = missions_of(values["mission"], values["cogs"])
            if earlier is not None and mission_texts(values["mission"]) == earlier.options.get("mission"):
                before = earlier.settings.get("missions")  # a wildcard may match more now
                missions = [one for one in missions if not isinstance(before, dict) or one.name in before]
            if values["turns"] is not None:
                missions = [dataclasses.replace(one, turns=values["turns"]) for one in missions]
            # The checkpoints are held until videos have been made, too.
            held = held_checkpoints(_candidates(values, earlier), None if earlier is None else earlier.settings)
            candidates = stack.enter_context(held)
            names = [one.name for one in candidates]
            # Proportions imply --versus; else the file to resume decides.
            share = versus or proportions is not None or any(one.proportion != 1 for one in candidates)
            share = share or (earlier is not None and earlier.settings.get("versus") is not False)
            if len(names) > 1 and not quiet:
                typer.echo(
                    f"The {len(names)} policies share the agents of each episode: their rows are mixed."
                    if share
                    else f"Each of the {len(names)} policies is evaluated on its own, on the same episodes. To have "
                    "them share the agents of an episode, give --versus.",
                    err=True,
                )
            thresholds = [Threshold.parse(text) for text in values["fail_below"] or ()]
            for threshold in thresholds:
                threshold.check(missions, names)
            files = (values[name] for name in ("save_episodes", "record", "videos", "report"))
            outputs = Outputs(output or resume, *files)
            outputs.check()
            timeline = None
            if trace is not None:
                from parallel_envs.trace import Trace

                timeline = Trace(trace, seconds=None)
            strategies = [word.rpartition("=") for word in strategy or ()]
            if wrong := ["".join(parts) for parts in strategies if not parts[0] or not parts[2]]:
                text = f"--strategy {wrong[0]!r} does not have the form AGENT=HOW, such as agent_0=thread."
                raise typer.BadParameter(text)
            values["strategy"] = {agent: name for agent, _, name in strategies} or None
            values["action_timeout_ms"] = action_timeout_ms / 1000 or None
            values["episode_timeout"] = episode_timeout or None
            settings = {name: values[option] for name, option in _SETTINGS.items()}
            if earlier is not None:
                replaced = [name for name, option in _SETTINGS.items() if option in given]
                known = {*_SETTINGS, "lateness_budget", "info_keys"} - {*replaced}
                settings |= {name: value for name, value in earlier.settings.items() if name in known}
            kept_now = {field.name: values[field.name] for field in dataclasses.fields(KeptOptions)}
            options = {name: str(one) if isinstance(one, Path) else one for name, one in kept_now.items() if one}
            texts = {"mission": mission_texts(values["mission"]), "policy": policy_texts(values["policy"], names)}
            result, stopped = _play(
                outputs,
                as_json or values["format"] != "table",
                quiet,
                timeline,
                missions=missions,
                policies=candidates,
                num_agents=values["cogs"],
                versus=share,
                jobs=int(values["jobs"]) if values["jobs"].isdecimal() else values["jobs"],
                strict=values["strict"],
                resume=resume,
                preload=("torch",) if is_installed("torch") and any(one.held for one in candidates) else (),  # slow
                options={**options, **texts},
                **settings,
            )
        if as_json:
            typer.echo(json_text(summary_of(result)))
        elif values["format"] == "table":
            console().print(*tables(result), sep="\n")
        else:
            typer.echo(text_of(result, values["format"]), nl=False)
        with plain_errors(*mistakes, words=_OPTIONS, exit_code=ExitCode.WENT_WRONG):
            outputs.write(result, missions, candidates)
            outputs.write_report(result)
            if timeline is not None:
                timeline.write()
    lines = [text for threshold in thresholds for text in threshold.missed_by(result)]
    went_wrong = stopped or bool(lines or result.failures) or not outputs.complete
    if (late := late_actions_text(result)) is not None:
        lines.append(late if values["allow_late"] else f"{late} With --allow-late this is no error.")
        went_wrong |= not values["allow_late"]
    if result.missing:
        lines.append(_how_to_resume(result, outputs.result_file, values))
    for line in lines:
        typer.echo(line, err=True)
    if result.interrupted and not stopped:
        raise typer.Exit(ExitCode.INTERRUPTED)
    if went_wrong:
        raise typer.Exit(ExitCode.WENT_WRONG)


def _start_early(jobs: str) -> None:
    """Have the process that workers are forked from load their modules, while this process still loads the same."""
    if jobs == "0":
        return
    from parallel_envs.engine import start_supervisor
    from parallel_envs.errors import WorkerStartError

    with contextlib.suppress(WorkerStartError, OSError):  # reported when workers are started, if it matters then
        start_supervisor(preload=("parallel_envs.engine.worker", "parallel_envs.evaluation.running"))


def _candidates(values: Mapping[str, Any], earlier: EvaluationResult | None) -> list[Candidate]:
    from parallel_envs.evaluation import candidates_of

    if (text := values["proportions"]) is not None:
        try:
            numbers = [float(part) for part in text.replace(":", ",").split(",")]
        except ValueError:
            text = f"--proportions {text!r} are not numbers. Give one for each policy: 2,1."
            raise typer.BadParameter(text) from None
        return candidates_of(values["policy"], numbers, values["trust"])
    found = candidates_of(values["policy"], None, values["trust"])
    policies = {} if earlier is None else earlier.settings.get("policies")
    known = policies if isinstance(policies, dict) else {}
    proportions = [known.get(one.name, {}).get("proportion", one.proportion) for one in found]
    return [dataclasses.replace(one, proportion=own) for one, own in zip(found, proportions, strict=True)]


def _play(
    outputs: Outputs, is_for_programs: bool, quiet: bool, timeline: Trace | None, **arguments: Any
) -> tuple[EvaluationResult, bool]:
    """Return the result, and whether an episode failed with --strict or the file could not be written."""
    from parallel_envs.cli.episode_display import shown_episodes
    from parallel_envs.errors import EpisodeFailed
    from parallel_envs.evaluation import NotSaved
    from parallel_envs.evaluation import evaluate as play
    from parallel_envs.evaluation.evaluate import PolicyNeverPlays

    def show_in_a_line(message: Warning | str, *where: Any, **more: Any) -> None:
        typer.echo(str(message), err=True)

    recorded = contextlib.nullcontext() if timeline is None else timeline.recording()
    kept_clean = stdout_kept_clean(wanted=is_for_programs)
    with recorded, shown_episodes(quiet=quiet) as progress, kept_clean, warnings.catch_warnings():
        warnings.simplefilter("always", PolicyNeverPlays)
        warnings.showwarning = show_in_a_line
        # The command prints this text below the result.
        warnings.filterwarnings("ignore", r"[\d,]+ actions? (was|were) late", RuntimeWarning)
        keep = False if outputs.save_episodes is None else outputs.save_episode
        try:
            return play(trajectories=keep, save=outputs.result_file, progress=progress, **arguments), False
        except (EpisodeFailed, NotSaved) as error:
            held: EvaluationResult = error.result
            typer.echo(str(error), err=True)
            return held, True


# ---- resuming -------------------------------------------------------------------------------------------------------


def _check_trusted(option: str, named: Any, file: str, trust: Sequence[str]) -> None:
    """Raise UntrustedName for missions and policies that only a results file names, if they may run foreign code."""
    from parallel_envs.evaluation import candidates_of
    from parallel_envs.evaluation.missions import check_trusted
    from parallel_envs.trust import check_policy

    for text in (named.values() if isinstance(named, Mapping) else named) or ():
        if option == "mission":
            check_trusted(text, file, trust)
        else:
            check_policy(candidates_of(text, trust=trust)[0].source.class_path, file, trust)


def _how_to_resume(result: EvaluationResult, file: Path | None, values: Mapping[str, Any]) -> str:
    """Return a text with the command that plays the missing episodes, and trusts the modules that the file names."""
    from parallel_envs.errors import UntrustedName
    from parallel_envs.extras import as_argument, shell_command

    played = len(result.episodes)
    text = f"{played} of {played + len(result.missing)} episodes were played"
    if file is None:
        return f"{text}, and cannot be resumed: there is no --output FILE.json."
    modules, checked = list(values["trust"]), 0
    while checked < 2:
        option = ("mission", "policy")[checked]
        try:
            _check_trusted(option, values[option], str(file), modules)
            checked += 1
        except UntrustedName as error:
            checked += error.module in modules
            modules += [] if error.module in modules else [error.module]
    words = ["eval --resume", as_argument(file), *(f"--trust {shlex.quote(module)}" for module in modules)]
    return (
        f"{text}, and are saved. To play the rest: {shell_command('parallel-envs', 'parallel_envs', ' '.join(words))}"
    )
