"""Check what a wheel installs: `python check_wheel.py FOLDER` prints the path of the one wheel in FOLDER.

An installed package owns every top-level name in its wheel. Ours must own `parallel_envs` alone: a stray
`wrappers` or `tests` would shadow the folders of the same name that other projects keep.
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

TOP_LEVEL = {"parallel_envs"}
MUST_HOLD = {
    "parallel_envs/__init__.py",
    "parallel_envs/ARCHITECTURE.md",
    "parallel_envs/py.typed",
    "parallel_envs/wrappers/__init__.py",
}


def wheel_faults(names: list[str]) -> list[str]:
    """What is wrong with a wheel that holds the files `names`; empty when it is as it should be."""
    top_level = {name.split("/")[0] for name in names}
    installed = {name for name in top_level if not name.endswith(".dist-info")}
    metadata = top_level - installed
    faults = [f"missing file {name}" for name in sorted(MUST_HOLD - set(names))]
    if installed != TOP_LEVEL:
        faults.append(f"top-level names {sorted(installed)}, expected {sorted(TOP_LEVEL)}")
    if len(metadata) != 1:
        faults.append(f"metadata folders {sorted(metadata)}, expected one")
    return faults


def main(folder: Path) -> int:
    """Check the only wheel in `folder`."""
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        print(f"{folder} holds {len(wheels)} wheels, expected one", file=sys.stderr)
        return 1
    with zipfile.ZipFile(wheels[0]) as archive:
        faults = wheel_faults(archive.namelist())
    for fault in faults:
        print(f"{wheels[0].name}: {fault}", file=sys.stderr)
    if not faults:
        print(wheels[0])
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
