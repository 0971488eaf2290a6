"""Files of settings, as they stand in YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["content_of", "settings_in"]


def content_of(path: str | Path, mistake: type[Exception]) -> Any:
    """What is in a YAML file. What keeps it from being read is a `mistake` that says so."""
    import yaml

    try:
        return yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise mistake(f"{path} cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise mistake(f"{path} is not YAML: {error}") from error


def settings_in(path: str | Path, mistake: type[Exception]) -> dict[str, Any]:
    """The same for a file that has to hold settings by name."""
    content = content_of(path, mistake)
    if not isinstance(content, dict):
        raise mistake(f"{path} holds {type(content).__name__}, where settings (`key: value`) are wanted.")
    return content
