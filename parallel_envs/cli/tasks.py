"""`parallel-envs tasks`: what an environment accepts as tasks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from parallel_envs.cli.mistakes import plain_errors

if TYPE_CHECKING:
    from parallel_envs.engine import Reply
    from parallel_envs.multiagent.by_name import EnvInspection

_SAMPLE = "task"  # stands in code for a task of which no example is known


def tasks(
    env: Annotated[
        str,
        typer.Argument(
            help="A Gymnasium id, a PettingZoo module or id, package.module:factory, or ./file.py:Class; ?key=value "
            "if need be."
        ),
    ],
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds that making the environment may take.")] = 120.0,
) -> None:
    """Say what an environment accepts as tasks: its layers, the way of a task into it, and code to give it one.

    The environment is made and reset once, in a process of its own. Exit code 1 if it takes no tasks.

    Example: parallel-envs tasks parallel_envs.testing.families:GridNaviEnv
    """
    from parallel_envs.errors import ParallelEnvsError

    with plain_errors(ValueError, ParallelEnvsError):
        found = _looked_at(env, timeout)
    for line in told(env, found):
        typer.echo(line)
    if not takes_tasks(found):
        raise typer.Exit(1)


def takes_tasks(found: EnvInspection) -> bool:
    """Whether a task would change anything."""
    return found.way is not None and found.looks is not False


def told(env: str, found: EnvInspection) -> Iterator[str]:
    """What was found, in lines."""
    yield f"lineage  {found.layers[0]}"
    yield from (f"         {'  ' * depth}holds {layer}" for depth, layer in enumerate(found.layers[1:]))
    yield f"way      {_way(found)}"
    if found.others:
        yield f"also     {', '.join(found.others)}"
    if found.sample is not None:
        yield f"sample   {found.sample}"
    yield from (f"{'example' if row == 0 else '':<9}{line}" for row, line in enumerate(_example(env, found)))


def _way(found: EnvInspection) -> str:
    if found.method is not None:
        return f"{found.method}, before each reset{'' if found.owner is None else f' (of {found.owner})'}"
    if found.looks:
        return 'reset(options={"task": task}): it looks at it'
    if found.way is not None:
        return "none: its reset takes options and does not look at options['task']; give task_setter="
    return "none: it has neither reset_task nor set_task, and its reset takes no options; give task_setter="


def _example(env: str, found: EnvInspection) -> Iterator[str]:
    task = found.sample or _SAMPLE
    manager = "ParallelEnvManager" if found.is_gymnasium else "MultiAgentEnvManager"
    if takes_tasks(found):
        yield f"envs = {manager}({_made(env)})"
        yield f"envs.reset(tasks=[{task}] * 8)"
        return
    yield "def give(env, task):"
    yield "    env.unwrapped.level = task  # whatever makes it another task"
    yield ""
    yield f"envs = {manager}({_made(env)}, task_setter=give)"


def _made(env: str) -> str:
    name, _, arguments = env.partition("?")
    if ":" in name and "/" not in name:
        return f"[{name.partition(':')[2]}] * 8"
    return f'"{name}", num_envs=8' + (", env_kwargs={...}" if arguments else "")


def _looked_at(env: str, timeout: float) -> EnvInspection:
    """The lineage as a worker of its own found it."""
    from parallel_envs.engine import HOST, Call, PoolSettings, open_pool
    from parallel_envs.errors import WorkerTimeout
    from parallel_envs.evaluation import missions_of
    from parallel_envs.multiagent.by_name import EnvInspector

    missions = missions_of(env)
    if len(missions) > 1:
        names = ", ".join(repr(mission.name) for mission in missions)
        raise ValueError(f"{env!r} names {len(missions)} environments. Give one of {names}.")
    make = missions[0].make
    pool = open_pool(1, PoolSettings(name="tasks"))
    try:
        key = pool.new_key()
        pool.send({0: Call(HOST, "build", (key, EnvInspector))})
        ticket = pool.send({0: Call(key, "look", (make,))})
        if not pool.wait(ticket, timeout):
            pool.kill(0)
            raise WorkerTimeout(f"Making and resetting {env!r} takes longer than {timeout:g} s. Give --timeout.")
        return _lineage(env, ticket.replies[0])
    finally:
        pool.close()


def _lineage(env: str, reply: Reply) -> EnvInspection:
    if reply.failure is not None:
        raise ValueError(f"{env!r} cannot be made: {reply.failure.type_name}: {reply.failure.message}")
    if reply.death is not None:
        raise ValueError(f"{env!r} ended its process (exit code {reply.death.exitcode}) while it was made.")
    found: EnvInspection = reply.value
    return found
