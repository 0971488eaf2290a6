"""Files of settings, as they stand in YAML."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from parallel_envs.spelling import nearest

__all__ = ["content_of", "settings_in", "value_of"]


def content_of(path: str | Path, mistake: type[Exception]) -> Any:
    """What is in a YAML file. What keeps it from being read is a `mistake` that says so: a name given twice, too."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise mistake(f"{path} cannot be read: {error.strerror or error}.{_meant(Path(path))}") from error
    except UnicodeDecodeError as error:
        raise mistake(f"{path} cannot be read: {error}") from error
    return value_of(text, str(path), mistake)


def value_of(text: str, what: str, mistake: type[Exception]) -> Any:
    """The same for text. `what`: what errors call it."""
    import yaml

    try:
        return yaml.load(text, Loader=_loader())
    except yaml.YAMLError as error:
        raise mistake(f"{what} is not YAML: {error}") from error


def _meant(path: Path) -> str:
    """The file beside it that is most like one that is not there."""
    if path.exists() or not path.parent.is_dir():
        return ""
    close = nearest(path.name, [other.name for other in path.parent.iterdir() if other.suffix in (".yaml", ".yml")])
    return "" if close is None else f" Did you mean {str(path.parent / close)!r}?"


@functools.cache
def _loader() -> Any:
    """The safe loader, but for names that are given twice: YAML allows none, and it would take the last."""
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            names = [name.value for name, _ in node.value if isinstance(name, yaml.ScalarNode)]
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice and isinstance(node, yaml.MappingNode):
                raise yaml.constructor.ConstructorError(None, None, f"`{twice[0]}` stands twice", node.start_mark)
            return super().construct_mapping(node, deep)

    return Loader


def settings_in(path: str | Path, mistake: type[Exception]) -> dict[str, Any]:
    """The same for a file that has to hold settings by name."""
    content = content_of(path, mistake)
    if not isinstance(content, dict):
        raise mistake(f"{path} holds {type(content).__name__}, where settings (`key: value`) are wanted.")
    return content
