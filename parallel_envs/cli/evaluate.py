"""`parallel-envs eval`."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from parallel_envs.cli.deliveries import Deliveries, Format, Which, show
from parallel_envs.cli.mistakes import plain_errors

if TYPE_CHECKING:
    from parallel_envs.evaluation import Candidate, EvaluationResult, Mission

# The names in `wrappers.STRATEGIES`, whose import takes longer than --help may.
Strategy = Literal["auto", "sequential", "thread", "process", "batch", "gpu"]
Turns = Literal["simultaneous", "sequential"]

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
}
"""What the arguments of `evaluate` are called here."""


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
    mission: Annotated[
        list[str],
        typer.Option(
            "--mission",
            "-m",
            metavar="NAME",
            help="What to play, again for more: a PettingZoo module, a Gymnasium id, package.module:factory, each with "
            "?key=value if need be; a wildcard (`mpe2.simple_*`); a file missions.yaml, or a set in it "
            "(missions.yaml:easy).",
        ),
    ],
    policy: Annotated[
        list[str],
        typer.Option(
            "--policy",
            "-p",
            metavar="SPEC",
            help="Who plays, again for more, who then share the agents: random, noop, package.module:Class, a folder, "
            "or class=C,data=D.",
        ),
    ],
    episodes: Annotated[
        int, typer.Option("--episodes", "-e", min=1, metavar="N", help="How many of each mission.")
    ] = 10,
    jobs: Annotated[
        str, typer.Option("--jobs", "-j", metavar="N|auto", help="Worker processes; 0: everything in this one.")
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
    action_timeout_ms: Annotated[
        float,
        typer.Option(min=0.0, metavar="MS", help="For an action; one that comes later is dropped. 0: no limit."),
    ] = 250.0,
    episode_timeout: Annotated[
        float,
        typer.Option(min=0.0, metavar="SECONDS", help="An episode that takes longer fails. 0: no limit."),
    ] = 600.0,
    steps: Annotated[
        int, typer.Option("--steps", "-s", min=1, metavar="N", help="After so many an episode is over.")
    ] = 1000,
    turns: Annotated[
        Turns | None,
        typer.Option(metavar="HOW", help="AEC environments: simultaneous (if they can), or sequential, one by one."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Where everything random comes from.")] = 42,
    proportions: Annotated[
        str | None, typer.Option(metavar="N,N", help="How many agents each policy gets, relative to the others.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first episode that fails.")] = False,
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
        Path | None, typer.Option(metavar="FILE", help="A .json output that is not complete: play the rest.")
    ] = None,
    record: Annotated[
        Which | None,
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
            help="A module whose classes the policy.json of a policy's folder may name, again for more. Without it "
            "only policies of this package are made from files.",
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

    Progress goes to stderr, results to stdout. Exit codes: 0 done; 1 an episode failed, a threshold was missed, or a
    file could not be written; 2 it cannot be done as asked, and nothing was played; 130 ended by Ctrl-C, with what was
    complete.

    Example: parallel-envs eval -m mpe2.simple_spread_v3 -p random --episodes 20 --jobs 4 --output results.json
    """
    _begin_early(jobs)
    from parallel_envs.cli.thresholds import BadThreshold, Threshold
    from parallel_envs.errors import ParallelEnvsError
    from parallel_envs.evaluation import BadEvaluation, candidates_of

    mistakes = BadEvaluation, BadThreshold, ParallelEnvsError, OSError
    with plain_errors(*mistakes, words=_OPTIONS):
        missions, shares = _missions(mission, turns), _numbers(proportions)
        thresholds = [Threshold.parse(text) for text in fail_below or ()]
        candidates = candidates_of(policy, shares, trust or ())
        names = [one.name for one in missions] + [one.name for one in candidates]
        for threshold in thresholds:
            threshold.check_name(names)
        deliveries = Deliveries(output, save_episodes, record, videos)
        deliveries.check()
        asked = {
            "missions": missions,
            "policies": policy,
            "proportions": shares,
            "episodes": episodes,
            "seed": seed,
            "jobs": _jobs(jobs),
            "parallel_policy": parallel_policy,
            "action_timeout": _seconds(action_timeout_ms / 1000),
            "episode_timeout": _seconds(episode_timeout),
            "max_steps": steps,
            "strict": strict,
            "resume": resume,
            "preload": slow_imports(candidates),
            "trust": trust or (),
        }
        result, went_wrong = _played(deliveries, asked)
    show(result, format)
    with plain_errors(*mistakes, words=_OPTIONS, exit_code=1):
        deliveries.make(result, missions, policy, shares, trust or ())
    missed = [told for threshold in thresholds for told in threshold.missed_by(result)]
    for line in missed:
        typer.echo(line, err=True)
    if result.interrupted and not went_wrong:
        raise typer.Exit(_INTERRUPTED)
    if went_wrong or missed or result.failures or not deliveries.complete:
        raise typer.Exit(1)


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
    from parallel_envs.engine import start_keeper
    from parallel_envs.errors import WorkerStartError

    with contextlib.suppress(WorkerStartError, OSError):  # told when workers are started, if it matters then
        start_keeper(preload=("parallel_envs.engine.worker", "parallel_envs.evaluation.player"))


def _played(deliveries: Deliveries, asked: dict[str, Any]) -> tuple[EvaluationResult, bool]:
    """What has come of it, and whether that went wrong: an episode failed with --strict, or the file is not there."""
    from parallel_envs.cli.progress import shown
    from parallel_envs.errors import EpisodeFailed
    from parallel_envs.evaluation import NotSaved
    from parallel_envs.evaluation import evaluate as play

    with shown() as progress:
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


# ---- what the user said ------------------------------------------------------------------------------------------


def _missions(names: Sequence[str], turns: Turns | None) -> list[Mission]:
    from parallel_envs.evaluation import missions_of

    found = missions_of(names)
    return found if turns is None else [dataclasses.replace(mission, turns=turns) for mission in found]


def _jobs(text: str) -> int | str:
    if text == "auto":
        return text
    if not text.isdecimal():
        raise typer.BadParameter(f"--jobs {text!r} is neither a whole number from 0 up nor 'auto'.")
    return int(text)


def _numbers(text: str | None) -> list[float] | None:
    if text is None:
        return None
    try:
        return [float(part) for part in text.replace(":", ",").split(",")]
    except ValueError:
        raise typer.BadParameter(f"--proportions {text!r} are not numbers. Give one for each policy: 2,1.") from None


def _seconds(number: float) -> float | None:
    return None if number == _NO_LIMIT else number
