"""What stands between a PettingZoo env and its worker, whichever agents it has: names passed on, results checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import gymnasium

from parallel_envs.multiagent.joint import shown
from parallel_envs.multiagent.roster import Agent

Info = dict[str, Any]
Named = Mapping[Agent, Any]
Results = tuple[dict[Agent, Any], dict[Agent, Any], dict[Agent, Any], dict[Agent, Any], dict[Agent, Any]]


class Adapter(gymnasium.Env[Any, Any]):
    """A Gymnasium env whose names, where they are not ours, are those of the PettingZoo env within."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.metadata = dict(getattr(env, "metadata", None) or {})
        self.render_mode = getattr(env, "render_mode", None)
        self._takes_turns = bool(getattr(env, "takes_turns", False))
        self._num_steps = 0
        self._lived: set[Agent] = set()
        self._waits = False
        """True after a lost episode without autoreset: the env is not stepped until its next reset."""

    @property
    def unwrapped(self) -> Any:
        return self.env.unwrapped

    def wait_after_loss(self) -> None:
        """Show no agents until the next reset, as after the end of an episode. Called when an episode was lost.

        The new env has been reset already, so that it has an observation to show. It is not stepped.
        """
        self._waits = True

    def get_wrapper_attr(self, name: str) -> Any:
        if self._waits and name == "agents":
            return []
        return getattr(_holder(self.env, name), name)

    def has_wrapper_attr(self, name: str) -> bool:
        return hasattr(_holder(self.env, name), name)

    def set_wrapper_attr(self, name: str, value: Any, *, force: bool = True) -> bool:
        if not force and not self.has_wrapper_attr(name):
            return False
        setattr(_holder(self.env, name), name, value)
        return True

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()

    def _reset_env(self, seed: int | None, options: Info | None) -> tuple[dict[Agent, Any], dict[Agent, Any]]:
        self._num_steps, self._waits = 0, False
        given = {"seed": seed, "options": options}
        told = self.env.reset(**{key: value for key, value in given.items() if value is not None})
        self._check_kinds(told, ("observations", "infos"))
        observations, infos = told
        if not self._takes_turns:
            self._check_agents(self.env.agents, observations)
        self._lived = set(self.env.agents)
        return observations, infos

    def _step_env(self, actions: Named) -> tuple[Results, bool]:
        """What the env returned; and whether all is as usual: those who acted have observations, and nobody ended."""
        self._num_steps += 1
        results: Results = self.env.step(actions)
        self._check_kinds(results, _RESULTS)
        observations, _, terminations, truncations, _ = results
        same = observations.keys() == actions.keys() == terminations.keys() == truncations.keys()
        usual = same and not any(terminations.values()) and not any(truncations.values())
        if not usual or len(self.env.agents) != len(actions):
            self._check_results(actions, observations, terminations, truncations)
        return results, usual

    def _check_kinds(self, told: Any, names: tuple[str, ...]) -> None:
        """Raise if this is not so many dicts."""
        if not isinstance(told, tuple | list) or len(told) != len(names):
            raise TypeError(
                f"In {self._moment} the environment returned {_counted(told)}. A parallel environment returns "
                f"{len(names)} dicts by agent here: {', '.join(names)}."
            )
        for named, value in zip(names, told, strict=True):
            if not isinstance(value, dict | Mapping):
                raise TypeError(
                    f"In {self._moment} the environment returned {shown(value)} as its {named}. Return a dict by agent."
                )

    def _own(self, info: Any, agent: Agent) -> Info:
        """The info of an agent, which must be a dict."""
        if not isinstance(info, dict | Mapping):
            raise TypeError(
                f"In {self._moment} the environment returned {shown(info)} as the info of {agent!r}. Return a dict."
            )
        return info if isinstance(info, dict) else dict(info)

    def _check_results(self, actions: Named, observations: Named, terminations: Named, truncations: Named) -> None:
        """Raise if what the env returned fits neither those who acted nor those who are alive now."""
        after = set(self.env.agents)
        if not self._takes_turns:
            self._check_agents(after, observations)
            living = after.union(actions)
            self._check_ghosts("an observation", observations, living)
            self._check_ghosts("a termination", terminations, living)
        for agent in after:
            if terminations.get(agent) or truncations.get(agent):
                raise ValueError(
                    f"In {self._moment} the environment ended {agent!r} and kept it in its agents. "
                    "Take an agent that is terminated or truncated out of `agents`."
                )
        self._lived |= after

    def _check_agents(self, agents: Iterable[Agent], observations: Named) -> None:
        for agent in agents:
            if agent not in observations:
                raise self._unseen(agent)

    def _check_ghosts(self, what: str, values: Named, living: set[Agent]) -> None:
        for agent in values:
            if agent in self._lived and agent not in living:
                raise ValueError(
                    f"In {self._moment} the environment returned {what} for {agent!r}, who was not alive before it and "
                    "is not after it. Return values for living agents only."
                )

    def _unseen(self, agent: Agent) -> ValueError:
        return ValueError(
            f"In {self._moment} the environment returned no observation for {agent!r}, who is among its agents. "
            "Return one for every living agent."
        )

    @property
    def _moment(self) -> str:
        return f"step {self._num_steps}" if self._num_steps else "reset"

    def _joint_end(self, terminations: Named, truncations: Named) -> tuple[bool, bool]:
        """The env ends when nobody is left: truncated if somebody was at last, else terminated."""
        if self.env.agents:
            return False, False
        cut = any(truncations.values())
        return not cut, cut


_RESULTS = ("observations", "rewards", "terminations", "truncations", "infos")


def _counted(told: Any) -> str:
    return f"{len(told)} values" if isinstance(told, tuple | list) else f"one {type(told).__name__}: {shown(told)}"


_INSIDE = ("env", "aec_env", "_conversion")
"""By which names wrappers, and conversions, hold what they wrap."""


def _holder(env: Any, name: str) -> Any:
    """Which of an env and those that it wraps has this attribute itself; the outermost if none has.

    PettingZoo's conversions hide the attributes of what they convert.
    """
    inner = env
    while inner is not None:
        if name in getattr(inner, "__dict__", ()) or hasattr(type(inner), name):
            return inner
        inner = next((vars(inner)[key] for key in _INSIDE if key in getattr(inner, "__dict__", ())), None)
    return env
