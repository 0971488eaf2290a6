"""Print one of the README's marked command lines: `python readme_command.py run|test [README.md]`.

The gate runs what this prints, so what the README tells its reader and what is tested are the same text. A
command is the single line of a fenced bash block that stands directly below its marker:

    <!-- ci: test -->
    ```bash
    python -m pytest
    ```
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

BLOCK = r"^<!-- ci: {name} -->\n```(?:bash|sh)\n(?P<body>.*?)^```$"


def readme_command(text: str, name: str) -> str:
    """The command line marked `<!-- ci: name -->` in `text`; ValueError unless exactly one line is marked."""
    marks = re.findall(rf"^<!-- ci: {re.escape(name)} -->$", text, re.MULTILINE)
    blocks = re.findall(BLOCK.format(name=re.escape(name)), text, re.MULTILINE | re.DOTALL)
    if len(marks) != 1 or len(blocks) != 1:
        raise ValueError(
            f"The marker <!-- ci: {name} --> was found {len(marks)} times, {len(blocks)} of them directly "
            "above a closed ```bash block. Mark exactly one block with it."
        )
    lines = [line for line in blocks[0].splitlines() if line.strip()]
    if len(lines) != 1:
        raise ValueError(f"The block below <!-- ci: {name} --> holds {len(lines)} lines. Make it one.")
    return str(lines[0])


def main(arguments: list[str]) -> int:
    """Print the command named by the first argument, or say what is wrong with the README."""
    name, path = arguments[0], Path(arguments[1] if len(arguments) > 1 else "README.md")
    try:
        print(readme_command(path.read_text(encoding="utf-8"), name))
    except (OSError, ValueError) as error:
        print(f"{path}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
