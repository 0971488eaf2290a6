"""All learners' states: as values, and in files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parallel_envs.learners.algorithm import Agent

if TYPE_CHECKING:
    from parallel_envs.learners.independent import IndependentLearners


def states_of(learners: IndependentLearners) -> dict[Agent, dict[str, Any]]:
    """See `IndependentLearners.states`."""
    acting = learners.policy.get_state()
    states = {agent: learner.state() for agent, learner in learners.agents.items()}
    for agent, state in states.items():
        state["generator"]["acting"] = acting[agent][0]["generator"]
    return states


def put_states(learners: IndependentLearners, states: Mapping[Agent, Mapping[str, Any]]) -> None:
    """Have these agents become what `states` told, which has been checked; the policy that acts for them as well."""
    for agent, state in states.items():
        learners.agents[agent].load_state(dict(state))
    learners.policy.load_state_dict({agent: learners.agents[agent].acting_weights() for agent in states})
    acting = learners.policy.get_state()
    drawn = {agent: state["generator"].get("acting") for agent, state in states.items()}
    learners.policy.set_state(
        {agent: ({"generator": own, "memory": None}, acting[agent][1]) for agent, own in drawn.items() if own}
    )


def check_states(
    learners: IndependentLearners, states: Mapping[Agent, Mapping[str, Any]], where: str | Path = "The given state"
) -> None:
    """Raise KeyError or BadCheckpoint unless every one of these agents can become what `states` told."""
    if not isinstance(states, Mapping):
        raise TypeError(f"{states!r} was given as states. Give a dict: {{agent: state}}, as `states()` returns.")
    for agent, state in states.items():
        if agent not in learners.agents:
            raise KeyError(f"There is no agent {agent!r} here. There are {list(learners.agents)}.")
        learners.agents[agent].check_state(state, where)


def save_states_to(
    learners: IndependentLearners,
    folder: str | Path,
    returns: Mapping[Agent, Iterable[float]],
    num_episodes: Mapping[Agent, int],
) -> None:
    """Write a checkpoint. `returns`: what each agent got in its last episodes; `num_episodes`: how many it finished."""
    from parallel_envs.learners.checkpoints import save_checkpoint

    states = learners.states()
    about: dict[str, Any] = {"seed": learners.seed, "steps": learners.steps, "updates": learners.updates}
    about |= {
        "returns": [list(returns[agent]) for agent in states],
        "episodes": [num_episodes[agent] for agent in states],
    }
    save_checkpoint(folder, states, about)


def load_states_from(
    learners: IndependentLearners, folder: str | Path
) -> tuple[dict[str, Any], dict[Agent, list[float]], dict[Agent, int]]:
    """Have the learners become what a checkpoint holds; nothing is changed if it does not fit.

    Returns what is said about all of them, what each got in its last episodes, and how many each has finished.
    """
    from parallel_envs.learners.checkpoints import BadCheckpoint, load_checkpoint

    checkpoint = load_checkpoint(folder)
    if odd := checkpoint.agents.keys() ^ learners.agents.keys():
        raise KeyError(f"{folder} and these learners differ in the agents {sorted(map(str, odd))}.")
    for name in ("seed", "steps", "updates"):
        if (count := checkpoint.about.get(name)) is None or type(count) is not int or count < 0:
            raise BadCheckpoint(f"{folder} says {name}={count!r} about all agents. Nothing was loaded.")
    returns = _returns_in(checkpoint.about, len(checkpoint.agents), folder)
    episodes: Any = checkpoint.about.get("episodes", [len(own) for own in returns])  # earlier versions did not count
    each = episodes if isinstance(episodes, list) and len(episodes) == len(returns) else [None]
    if not all(type(one) is int and one >= 0 for one in each):
        raise BadCheckpoint(f"{folder} says episodes={episodes!r} about all agents. Nothing was loaded.")
    check_states(learners, checkpoint.agents, folder)
    learners.load_states(checkpoint.agents)
    agents = checkpoint.agents
    return (
        checkpoint.about,
        dict(zip(agents, returns, strict=True)),
        dict(zip(agents, episodes, strict=True)),
    )


def _returns_in(about: Mapping[str, Any], num_agents: int, where: str | Path) -> list[list[float]]:
    """What each agent got in its last episodes; nothing where it was not noted yet."""
    from parallel_envs.learners.checkpoints import BadCheckpoint

    returns: Any = about.get("returns", [[]] * num_agents)
    each = returns if isinstance(returns, list) and len(returns) == num_agents else [None]
    if not all(isinstance(own, list) and all(isinstance(one, int | float) for one in own) for own in each):
        raise BadCheckpoint(f"{where} says returns={returns!r} about all agents. Nothing was loaded.")
    return list(returns)
