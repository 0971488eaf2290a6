"""What numbers can come to at least and at most, without negative numbers and fractions on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from parallel_envs.groups.envs.fields import Span


def reach(number_range: Span, operators: str, most: int) -> list[Span | None]:
    """The smallest and the largest result of one number, of two, and so on; None where they cannot be combined.

    What lies between need not be reached.
    """
    spans: list[Span | None] = [number_range]
    while len(spans) < most:
        found = list(_combined(spans, operators))
        spans.append((min(low for low, _ in found), max(high for _, high in found)) if found else None)
    return spans


def _combined(spans: list[Span | None], operators: str) -> Iterator[Span]:
    for left, right in zip(spans, reversed(spans), strict=True):
        if left is None or right is None:
            continue
        for sign in set(operators):
            low, high = _RESULTS[sign](left, right)
            if low <= high:
                yield low, high


def _quotients(left: Span, right: Span) -> Span:
    if right[1] == 0:
        return 1, 0  # none
    low = 0 if left[0] == 0 else -(-left[0] // right[1])
    return low, left[1] // max(right[0], 1)


_RESULTS: dict[str, Callable[[Span, Span], Span]] = {
    "+": lambda left, right: (left[0] + right[0], left[1] + right[1]),
    "-": lambda left, right: (max(left[0] - right[1], 0), left[1] - right[0]),
    "*": lambda left, right: (left[0] * right[0], left[1] * right[1]),
    "/": _quotients,
}
