"""Suggestions for unknown words: the nearest known word, and our name for a name of another package."""

from __future__ import annotations

import functools
import reprlib
from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeVar, cast

__all__ = ["advice", "hint", "is_one_of", "nearest", "nearest_few", "suggests_keywords", "unknown_keyword"]

Thing = TypeVar("Thing", bound=Callable[..., Any])
_LONG = 5
"""Shortest word that counts as the beginning of a longer known word."""
_ALIKE, _NEARLY_THE_SAME = 0.75, 0.9
"""Similarity from which a known word is suggested instead of the same name elsewhere in the package, and instead of the
explanation for a name of another package that has no counterpart here."""


def nearest(word: object, known: Iterable[object], cutoff: float = 0.6) -> str | None:
    """Return the known word most like this one, ignoring case, or None."""
    return next(iter(nearest_few(word, known, most=1, cutoff=cutoff)), None)


def nearest_few(word: object, known: Iterable[object], *, most: int, cutoff: float = 0.6) -> list[str]:
    """Return the known words most like this one, the nearest first."""
    import difflib  # late: needed only for an error

    by_lower, wrong = {str(one).lower(): str(one) for one in known}, str(word).lower()
    longer = [one for one in by_lower if len(wrong) >= _LONG and one.startswith(wrong)]  # an abbreviation
    close = difflib.get_close_matches(wrong, by_lower, n=most, cutoff=cutoff)
    return [by_lower[one] for one in dict.fromkeys([*sorted(longer, key=len), *close])][:most]


def is_one_of(value: object, words: Collection[str]) -> bool:
    """Return True if the value is one of these words. The value may be anything, also an array."""
    return isinstance(value, str) and value in words


def hint(word: object, known: Iterable[object]) -> str:
    """Return " Did you mean ...?" for the end of an error text, or "" if no known word is like this one."""
    close = nearest(word, known) if isinstance(word, str) else None
    return f" Did you mean {close!r}?" if close is not None else ""


def advice(word: object, known: Iterable[object]) -> str:
    """Return a sentence that names the nearest known word, our name for a foreign one, or all known words."""
    from parallel_envs.standard_names import told  # late: needed only for an error

    words = sorted(map(str, known))
    if standard := told(word, words):
        return standard
    close = nearest(word, words)
    return f"Did you mean `{close}`?" if close else f"Known are {', '.join(f'`{one}`' for one in words)}."


def unknown_keyword(owner: str, name: str, value: object, known: Collection[str], what: str = "argument") -> TypeError:
    """Return the error for a keyword argument that `owner` does not have.

    The error suggests, in this order: our name for a name of other packages, a very similar argument, the place where
    the name belongs, a similar argument, all arguments.
    """
    from parallel_envs.standard_names import ABSENT, elsewhere, told  # late: needed only for an error

    close = nearest(name, known)
    meant = told(name, known)
    if not meant and nearest(name, known, cutoff=_NEARLY_THE_SAME if name in ABSENT else _ALIKE) is None:
        meant = elsewhere(name, known)
    if not meant:
        meant = f"Those are {', '.join(known)}." if close is None else f"Did you mean {close}=?"
    return TypeError(f"{name}={reprlib.repr(value)} is no {what} of {owner}. {meant}")


def suggests_keywords(thing: Thing) -> Thing:
    """Make a function or class raise a TypeError with a suggestion for an unknown keyword.

    The signature stays, for readers and for tools. The function must not take keywords of any name (`**kwargs`).
    """
    if isinstance(thing, type):
        cast(Any, thing).__init__ = _checked(cast(Any, thing).__init__)
        return thing
    return cast(Thing, _checked(thing))


def _checked(function: Callable[..., Any]) -> Callable[..., Any]:
    code = function.__code__
    names = code.co_varnames[code.co_posonlyargcount : code.co_argcount + code.co_kwonlyargcount]
    known = frozenset(names)

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if not kwargs.keys() <= known:
            name = next(name for name in kwargs if name not in names)
            arguments = [one for one in names if one != "self"]
            is_init = function.__name__ == "__init__"  # of the class of args[0], or of a class that it inherits from
            owner = type(args[0]).__name__ if is_init else function.__name__
            raise unknown_keyword(owner, name, kwargs[name], arguments)
        return function(*args, **kwargs)

    return checked
