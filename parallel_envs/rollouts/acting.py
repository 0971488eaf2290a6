"""The policy's half of a collection: what it remembers of each row, and one call of it for all rows that wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from parallel_envs.policies import BatchPolicy, Rows
from parallel_envs.rollouts import answers, trees
from parallel_envs.rollouts.columns import Columns
from parallel_envs.rollouts.interrupts import Interrupts
from parallel_envs.rollouts.takes import Take


class Acting:
    """A policy at work in `num_rows` rows, one for each environment.

    With `exact` each row is computed by itself, so that no result depends on who shares a batch.
    """

    def __init__(
        self,
        policy: BatchPolicy,
        num_rows: int,
        columns: Columns,
        action_columns: Columns,
        interrupts: Interrupts,
        *,
        exact: bool,
    ) -> None:
        self._policy, self._exact, self._interrupts = policy, exact, interrupts
        self._columns, self._action_columns = columns, action_columns
        self._state = answers.initial_state(policy, num_rows)
        self._has_state = not trees.is_empty(self._state)
        self._recorded: dict[str, npt.NDArray[Any]] | None = None
        self._previous_rewards = np.zeros(num_rows)
        shape, dtype = (num_rows, *action_columns.shape), action_columns.dtype
        self._previous_actions = np.zeros(shape, dtype) if action_columns.is_array else None

    def rewarded(self, row: int, reward: float) -> None:
        """What the last action of a row has brought."""
        self._previous_rewards[row] = reward

    def act(self, takes: Mapping[int, Take], batch: Any) -> Any:
        """The actions for these rows, whose observations are `batch`. They are noted in the takes."""
        rows = np.array(list(takes))
        if self._exact:
            parts = [
                self._decide(rows[[place]], [take], self._columns.take(batch, [place]))
                for place, take in enumerate(takes.values())
            ]
            actions = self._action_columns.join([part[0] for part in parts])
            records = _joined([part[1] for part in parts])
        else:
            actions, records = self._decide(rows, list(takes.values()), batch)
        for place, take in enumerate(takes.values()):
            take.actions.append(self._action_columns.row(actions, place))
            if records:
                take.records.append({name: column[place] for name, column in records.items()})
        return actions

    def _decide(
        self, envs: npt.NDArray[np.intp], takes: Sequence[Take], batch: Any
    ) -> tuple[Any, dict[str, npt.NDArray[Any]]]:
        """One call of the policy."""
        resets = np.array([not take.rewards for take in takes])
        if resets.any():
            self._start_rows(envs[resets])
        rows = Rows(
            [take.generator for take in takes],
            lambda: [self._columns.row(batch, row) for row in range(len(takes))],
            None if self._previous_actions is None else self._previous_actions[envs],
            self._previous_rewards[envs],
        )
        state = trees.take(self._state, envs) if self._has_state else self._state
        with self._interrupts.let_through():
            answer = self._policy.act(batch, state, resets, rows)
        given, state = answers.parted(self._policy, answer)
        actions = answers.actions(self._policy, given, self._action_columns, len(takes))
        self._state = answers.put_state(self._policy, self._state, envs, state)
        if self._previous_actions is not None:
            self._previous_actions[envs] = actions
        self._recorded = answers.records(self._policy, rows.records, len(takes), self._recorded)
        return actions, self._recorded

    def _start_rows(self, envs: npt.NDArray[np.intp]) -> None:
        """Forget the episodes that were played in these rows before."""
        self._previous_rewards[envs] = 0.0
        if self._previous_actions is not None:
            self._previous_actions[envs] = 0
        if self._has_state:
            fresh = answers.initial_state(self._policy, len(envs))
            self._state = answers.put_state(self._policy, self._state, envs, fresh)


def _joined(parts: Sequence[Mapping[str, npt.NDArray[Any]]]) -> dict[str, npt.NDArray[Any]]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
