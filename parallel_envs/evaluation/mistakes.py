"""What is wrong with what was asked, found before anything starts."""

from __future__ import annotations


class BadEvaluation(ValueError):
    """An evaluation cannot be done as asked: an unknown mission, a policy that does not fit, a number out of range."""


class PolicyNeverPlays(UserWarning):
    """Policies share the agents of a mission, and there are too few for all of them."""
