"""Record all cases anew and print the names of those that differ from before."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.golden.cases import CASES, way_name
from tests.golden.fingerprints import differences, fingerprint, machine

FILE = Path(__file__).parent / "recorded.json"


def main() -> int:
    """Write `recorded.json`, unless two ways of one case differ."""
    old = json.loads(FILE.read_text())["cases"] if FILE.exists() else {}
    new = {}
    for name, case in CASES.items():
        first, *others = ((way, fingerprint(case.compute(**way))) for way in case.ways)
        for way, found in others:
            if unlike := differences(first[1], found, exact=True):
                print(f"{name}: {way_name(way)} differs from {way_name(first[0])}:", *unlike[:5], sep="\n  ")
                return 1
        new[name] = json.loads(json.dumps(first[1]))
        if changed := differences(old.get(name), new[name], exact=True):
            print(f"{name}: {'changed' if name in old else 'new'}")
            if name in old:
                print(*changed[:3], sep="\n  ")
    for name in old.keys() - new.keys():
        print(f"{name}: gone")
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(value, separators=(',', ':'))}" for name, value in new.items())
    FILE.write_text(f'{{"machine": {json.dumps(machine())},\n"cases": {{\n{lines}\n}}}}\n')
    return 0


if __name__ == "__main__":
    sys.exit(main())
