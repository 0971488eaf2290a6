"""`parallel-envs tasks`: whether and how an environment takes tasks."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from parallel_envs.cli.outputs import AsJson, ExitCode, json_text, plain_errors

if TYPE_CHECKING:
    from parallel_envs.multiagent.by_name import EnvInspection


def tasks(
    env: Annotated[
        str,
        typer.Argument(
            metavar="ENV",
            help="A Gymnasium id, a PettingZoo module or id, package.module:factory, or ./file.py:Class, with "
            "?key=value if needed.",
        ),
    ],
    timeout: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="Time for making the environment.")
    ] = 120.0,
    as_json: AsJson = False,
) -> None:
    """Show how an environment takes tasks: its layers, the method that takes a task, and code that gives it one.

    The environment is made and reset once, in a process of its own. Exit code 1 if it takes no tasks.

    Examples:
      parallel-envs tasks parallel_envs.testing.families:GridNaviEnv
      parallel-envs tasks parallel_envs.testing.families:GridNaviEnv --json
      parallel-envs tasks parallel_envs.testing.families:GridNaviEnv --timeout 300
    """
    from parallel_envs.engine import HOST, Call, PoolSettings, open_pool
    from parallel_envs.errors import ParallelEnvsError, WorkerTimeout
    from parallel_envs.evaluation import missions_of
    from parallel_envs.multiagent.by_name import EnvInspector

    with plain_errors(ValueError, ParallelEnvsError):
        missions = missions_of(env)
        if len(missions) > 1:
            names = ", ".join(repr(mission.name) for mission in missions)
            raise ValueError(f"{env!r} names {len(missions)} environments. Give one of {names}.")
        with contextlib.closing(open_pool(1, PoolSettings(name="tasks"))) as pool:
            key = pool.new_key()
            pool.send({0: Call(HOST, "build", (key, EnvInspector))})
            request = pool.send({0: Call(key, "look", (missions[0].make,))})
            if not pool.wait(request, timeout):
                pool.kill(0)
                raise WorkerTimeout(f"Making and resetting {env!r} takes longer than {timeout:g} s. Give --timeout.")
            reply = request.replies[0]
        if reply.failure is not None:
            raise ValueError(f"{env!r} cannot be made: {reply.failure.type_name}: {reply.failure.message}")
        if reply.death is not None:
            raise ValueError(f"{env!r} ended its process (exit code {reply.death.exitcode}) while it was made.")
    found: EnvInspection = reply.value
    takes_tasks = found.way is not None and found.looks is not False  # whether a task would change anything
    if as_json:
        document = {"env": env, "takes_tasks": takes_tasks, **dataclasses.asdict(found)}
        typer.echo(json_text({**document, "code": "\n".join(_code(env, found, takes_tasks))}))
    else:
        typer.echo("\n".join(_lines(env, found, takes_tasks)))
    if not takes_tasks:
        raise typer.Exit(ExitCode.WENT_WRONG)


def _lines(env: str, found: EnvInspection, takes_tasks: bool) -> Iterator[str]:
    """Yield the lines of the output."""
    yield f"lineage  {found.layers[0]}"
    yield from (f"         {'  ' * depth}holds {layer}" for depth, layer in enumerate(found.layers[1:]))
    if found.method is not None:
        way = f"{found.method}, before each reset{'' if found.owner is None else f' (of {found.owner})'}"
    elif found.looks:
        way = 'reset(options={"task": task}), which reads it'
    elif found.way is not None:
        way = "none: its reset takes options and does not read options['task']; give task_setter="
    else:
        way = "none: it has neither reset_task nor set_task, and its reset takes no options; give task_setter="
    yield f"way      {way}"
    if found.others:
        yield f"also     {', '.join(found.others)}"
    if found.sample is not None:
        yield f"sample   {found.sample}"
    yield from (f"{'example' if row == 0 else '':<9}{line}" for row, line in enumerate(_code(env, found, takes_tasks)))


def _code(env: str, found: EnvInspection, takes_tasks: bool) -> list[str]:
    """Return lines of Python that make the environment and give it tasks."""
    name, _, arguments = env.partition("?")
    made = f'"{name}", num_envs=8' + (", env_kwargs={...}" if arguments else "")
    if ":" in name and "/" not in name:
        made = f"[{name.partition(':')[2]}] * 8"
    manager = "ParallelEnvManager" if found.is_gymnasium else "MultiAgentEnvManager"
    if takes_tasks:
        return [f"envs = {manager}({made})", f"envs.reset(tasks=[{found.sample or 'task'}] * 8)"]
    setter = ["def give(env, task):", "    env.unwrapped.level = task  # whatever makes it another task", ""]
    return [*setter, f"envs = {manager}({made}, task_setter=give)"]
