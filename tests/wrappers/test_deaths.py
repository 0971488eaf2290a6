"""Ways to die x moments to die, of policies in workers: agents are named, the others go on, and all can begin anew."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from parallel_envs.errors import PolicyError
from parallel_envs.wrappers import PerAgentProcessWrapper, PolicyPool, Rules, process
from tests.wrappers.agents import ended, exiting, killed, raising

SEEN = np.zeros(2)
SOON = 10.0
LIMIT = 0.3
"""Beyond it a policy is late. All others answer far sooner, also on a busy machine."""
HUGE = 8 << 20


class Odd(Exception):
    """Cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("odd")
        self.lock = threading.Lock()


def odd() -> Any:
    raise Odd


def hanging() -> Any:
    threading.Event().wait(60.0)


def stopped() -> Any:
    os.kill(os.getpid(), signal.SIGSTOP)


def huge() -> bytes:
    return bytes(HUGE)


class Dying:
    """Does something at one moment of its life. Like a spec, it is made in its worker."""

    def __init__(self, moment: str, how: Callable[[], Any]) -> None:
        self.moment, self.how = moment, how

    def make(self) -> Dying:
        self._at("constructor")
        return self

    def _at(self, moment: str, value: Any = None) -> Any:
        return self.how() if moment == self.moment else value

    def step(self, observation: Any) -> Any:
        return self._at("step", 7)

    def reset(self) -> None:
        self._at("reset")

    def get_state(self) -> Any:
        return self._at("get_state", {})

    def set_state(self, state: Any) -> None:
        self._at("set_state")

    def close(self) -> None:
        self._at("close")


RAISES = {
    "exception": (raising, "ZeroDivisionError: by nothing"),
    "exit": (exiting, "SystemExit: 3"),
    "odd": (odd, "Odd"),
}
DIES = {
    "SIGKILL": (killed, "WorkerDied: .*was killed by signal 9"),
    "os._exit": (ended, "WorkerDied: .*exited with code 17"),
}
HANGS = {"hang": (hanging, "still busy"), "SIGSTOP": (stopped, "still busy")}
WAYS: dict[str, Any] = {**RAISES, **DIES, **HANGS, "huge": (huge, "")}
MOMENTS = ("step", "reset", "get_state", "set_state")


def seated(pool: PolicyPool, moment: str, how: str) -> PerAgentProcessWrapper:
    """One that dies, with another in its worker, and one in the other worker."""
    policies = {"dying": Dying(moment, WAYS[how][0]), "apart": Dying("never", int), "beside": Dying("never", int)}
    rules = Rules(action_timeout=LIMIT, default_action=-1) if how in HANGS else None
    return PerAgentProcessWrapper(policies, rules, pool=pool)


def happens(wrapper: PerAgentProcessWrapper, moment: str) -> Any:
    """The moment, for all agents."""
    if moment == "step":
        return wrapper.step(dict.fromkeys(wrapper.policies, SEEN))
    if moment == "set_state":
        return wrapper.set_states(dict.fromkeys(wrapper.policies, ({}, [])))
    return wrapper.reset() if moment == "reset" else wrapper.get_states()


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("how", WAYS)
def test_a_policy_that_dies(pool: PolicyPool, monkeypatch: pytest.MonkeyPatch, how: str, moment: str) -> None:
    monkeypatch.setattr(process, "_STATE_SECONDS", LIMIT)
    began = time.monotonic()
    with seated(pool, moment, how) as wrapper:
        if how == "huge" or (how in HANGS and moment in ("reset", "step")):
            told = happens(wrapper, moment)  # it is no error
            if moment == "step":
                assert told["dying"] == (-1 if how in HANGS else bytes(HUGE))
        else:
            for _ in range(2 if moment == "step" else 1):
                with pytest.raises(PolicyError, match=f"policy of 'dying' raised .*{WAYS[how][1]}") as caught:
                    happens(wrapper, moment)
                lost = {"dying"} if how in RAISES else {"dying", "beside"}
                assert set(caught.value.agents) == lost
                if moment == "step":
                    assert ("revive" in str(caught.value)) == (how in DIES)
                    assert caught.value.actions == dict.fromkeys({"apart", "beside"} - lost, 7)
        assert wrapper.step({"apart": SEEN}) == {"apart": 7}
        assert wrapper.revive() == (["dying", "beside"] if how in DIES or how in HANGS else [])
        assert wrapper.step({"apart": SEEN, "beside": SEEN}) == {"apart": 7, "beside": 7}
    assert time.monotonic() - began < SOON


@pytest.mark.parametrize("how", [*RAISES, *DIES])
def test_a_policy_that_dies_while_it_is_made(pool: PolicyPool, how: str) -> None:
    with pytest.raises(
        PolicyError, match=f"policy of 'dying' raised .*{WAYS[how][1].removesuffix('.*revive')}"
    ) as caught:
        seated(pool, "constructor", how)
    assert set(caught.value.agents) == ({"dying"} if how in RAISES else {"dying", "beside"})
    with seated(pool, "never", how) as again:  # on the same pool
        assert again.step({"dying": SEEN, "apart": SEEN}) == {"dying": 7, "apart": 7}


@pytest.mark.parametrize("how", WAYS)
def test_a_policy_that_dies_while_it_is_closed_holds_up_no_other(how: str) -> None:
    pool = PolicyPool(2)
    began = time.monotonic()
    with seated(pool, "close", how) as wrapper:
        assert happens(wrapper, "step") == dict.fromkeys(("dying", "apart", "beside"), 7)
    pool.close(0.3)
    assert time.monotonic() - began < SOON
