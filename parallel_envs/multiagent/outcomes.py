"""From what the manager beneath returned to what agents are told: whose last words, and whose first, a row holds."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from parallel_envs.multiagent.attendance import Attendance
from parallel_envs.multiagent.fixed_rows import FixedRows
from parallel_envs.multiagent.joint import Flags, Joint, read_only
from parallel_envs.multiagent.last_words import LastWords, Step
from parallel_envs.multiagent.open_rows import OpenRows
from parallel_envs.multiagent.roster import Agent
from parallel_envs.vector.step_loop import RESTARTED


class Infos(dict[Agent, dict[str, Any]]):
    """Infos by agent, each in Gymnasium's vector layout. `common` holds what is about environments as a whole.

    Threads: a dict of the caller's own, which nothing here changes once it has been returned.
    """

    def __init__(self, infos: Mapping[Agent, dict[str, Any]], common: dict[str, Any]) -> None:
        super().__init__(infos)
        self.common = common


class Outcomes:
    """Takes batches apart by agent, and keeps who is there and what was last said to whom."""

    def __init__(self, rows: FixedRows | OpenRows, attendance: Attendance) -> None:
        self._rows, self._attendance = rows, attendance
        self._last_words = LastWords(rows)

    def forget(self, envs: Iterable[int]) -> None:
        """The episodes of these environments are broken off."""
        self._last_words.forget(envs)

    def of_reset(self, observations: Any, infos: Any, others: Collection[int], num_envs: int) -> Joint:
        """What a reset returned; the environments `others` have not been reset."""
        joint = self._rows.joint(self._rows.silenced(observations, others), infos, num_envs)
        self._attendance.note(joint)
        return joint

    def of_error(self, observations: Any, num_envs: int) -> None:
        """After an error the environments that did not raise have gone on: who is there now, and new spaces."""
        self._attendance.note(self._rows.joint(observations, {}, num_envs))

    def of_step(
        self, envs: npt.NDArray[np.intp] | None, observations: Any, ended: Flags, infos: Any
    ) -> tuple[Joint, Joint]:
        """What the environments (None: all) returned from their steps, and what is shown: another thing where one has
        been reset since.
        """
        if "final_obs" in infos:
            finals = np.flatnonzero(infos["_final_obs"]).tolist()
            last, joint = self._before_and_after(envs, observations, infos, finals, len(ended))
        else:
            finals = []
            last = joint = self._rows.joint(observations, infos, len(ended), envs)
        if RESTARTED in joint.common or last.someone_ended or np.count_nonzero(ended):
            self._tell_ends(last, joint, np.arange(len(ended)) if envs is None else envs, ended, finals)
        self._attendance.note(joint, envs)
        return last, joint

    def _before_and_after(
        self, envs: npt.NDArray[np.intp] | None, observations: Any, infos: Any, finals: list[int], num_rows: int
    ) -> tuple[Joint, Joint]:
        """SAME_STEP: rewards and ends are those of the last step, not of the reset after it in the rows `finals`."""
        after = {key: value for key, value in infos.items() if key.removeprefix("_") not in ("final_obs", "final_info")}
        before = self._rows.substituted(observations, {row: infos["final_obs"][row] for row in finals})
        last = self._rows.joint(before, infos.get("final_info", {}), num_rows, envs, observations)
        joint = self._rows.joint(observations, after, num_rows, envs, before)
        if "new_agents" in last.common:
            joint.common["new_agents"] = last.common.pop("new_agents")
        if last.common:
            joint.common |= {"final_info": last.common, "_final_info": infos["_final_info"]}
        return last, joint

    def _tell_ends(
        self, last: Joint, joint: Joint, envs: npt.NDArray[np.intp], ended: Flags, finals: Collection[int]
    ) -> None:
        """Agents that ended are remembered; episodes that ended are told of, unless they were lost."""
        lost = np.asarray(joint.common.get(RESTARTED, np.zeros(len(ended))), np.bool_)
        if lost.any():
            self._end_lost(last, joint, envs, lost)
        step = Step(last, joint, envs, finals)
        over, going_on = ended & ~lost, ~ended & ~lost
        if last.someone_ended and going_on.any():
            self._last_words.hear(step, going_on)
        if over.any():
            self._last_words.tell(joint.infos, step, over)

    def _end_lost(self, last: Joint, joint: Joint, envs: npt.NDArray[np.intp], lost: Flags) -> None:
        """Episodes that were lost with their worker: whoever was alive in one is truncated, without last words."""
        self._last_words.forget(envs[lost])
        for agent, before in self._attendance.alive.items():
            cut = lost & before[envs]
            if agent not in joint.truncations and cut.any():
                self._rows.add_absent(joint, agent)
                self._rows.add_absent(last, agent)
            if agent in last.truncations:
                last.truncations[agent] = read_only(last.truncations[agent] | cut)
        goes_on = ~lost  # it is over; where that is the last that is shown, nobody acts
        last.alive = {agent: read_only(alive & goes_on) for agent, alive in last.alive.items()}
