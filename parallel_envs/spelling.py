"""Words that are not known, told with the known one that is most like them."""

from __future__ import annotations

import functools
import reprlib
from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeVar, cast

__all__ = ["advice", "hint", "is_one_of", "nearest", "nearest_few", "suggests_keywords", "unknown_keyword"]

Thing = TypeVar("Thing", bound=Callable[..., Any])
_LONG = 5
"""What is shorter begins too many words to be the beginning of one."""
_ALIKE, _NEARLY_THE_SAME = 0.75, 0.9
"""How alike a known word is that is meant rather than the very name elsewhere (`num_workers`, and `workers` is known),
and rather than what other packages have and we have not."""


def nearest(word: object, known: Iterable[object], cutoff: float = 0.6) -> str | None:
    """The known word that is most like this one, whatever its case; None where none is like it."""
    return next(iter(nearest_few(word, known, most=1, cutoff=cutoff)), None)


def nearest_few(word: object, known: Iterable[object], *, most: int, cutoff: float = 0.6) -> list[str]:
    """The known words that are most like this one, the nearest first."""
    import difflib  # only where something is wrong already

    by_lower, said = {str(one).lower(): str(one) for one in known}, str(word).lower()
    longer = [one for one in by_lower if len(said) >= _LONG and one.startswith(said)]  # who writes less means this
    close = difflib.get_close_matches(said, by_lower, n=most, cutoff=cutoff)
    return [by_lower[one] for one in dict.fromkeys([*sorted(longer, key=len), *close])][:most]


def is_one_of(value: object, words: Collection[str]) -> bool:
    """Whether a value that somebody gave is one of these words. It may be anything, an array too."""
    return isinstance(value, str) and value in words


def hint(word: object, known: Iterable[object]) -> str:
    """A sentence to end the text of an error with, or nothing where no known word is like this one."""
    close = nearest(word, known) if isinstance(word, str) else None
    return f" Did you mean {close!r}?" if close is not None else ""


def advice(word: object, known: Iterable[object]) -> str:
    """A sentence that names the known word most like a wrong one, or all of them. Names of other packages are known."""
    from parallel_envs.standard_names import told  # only where something is wrong already

    words = sorted(map(str, known))
    if standard := told(word, words):
        return standard
    close = nearest(word, words)
    return f"Did you mean `{close}`?" if close else f"Known are {', '.join(f'`{one}`' for one in words)}."


def unknown_keyword(owner: str, name: str, value: object, known: Collection[str], what: str = "argument") -> TypeError:
    """The error for a keyword argument that `owner` does not have."""
    return TypeError(f"{name}={reprlib.repr(value)} is no {what} of {owner}. {_keyword_meant(name, known)}")


def _keyword_meant(name: str, known: Collection[str]) -> str:
    """What was meant: by the name that others use, by likeness, or elsewhere."""
    from parallel_envs.standard_names import ABSENT, elsewhere, told  # only where something is wrong already

    if standard := told(name, known):
        return standard
    close = nearest(name, known)
    alike = nearest(name, known, cutoff=_NEARLY_THE_SAME if name in ABSENT else _ALIKE)
    if alike is None and (standard := elsewhere(name, known)):
        return standard
    return f"Those are {', '.join(known)}." if close is None else f"Did you mean {close}=?"


def suggests_keywords(thing: Thing) -> Thing:
    """A function or class as it is, whose TypeError for a keyword that it does not have names the nearest.

    Its signature stays, for readers and for tools. It must not take keywords of any name (`**kwargs`).
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
            raise _first_unknown(function, args, kwargs, names)
        return function(*args, **kwargs)

    return checked


def _first_unknown(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], names: tuple[str, ...]
) -> TypeError:
    name = next(name for name in kwargs if name not in names)
    known = [one for one in names if one != "self"]
    is_init = function.__name__ == "__init__"  # of a class, or of one that inherits it
    return unknown_keyword(type(args[0]).__name__ if is_init else function.__name__, name, kwargs[name], known)
