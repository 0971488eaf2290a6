"""What is wrong with what was asked, found before anything starts."""

from __future__ import annotations


class BadEvaluation(ValueError):
    """An evaluation cannot be done as asked: an unknown mission, a policy that does not fit, a number out of range."""
