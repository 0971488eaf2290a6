"""Inventories of other projects: the names that these pages link to, so that the site is built without a network.

    python docs/inventories.py             write docs/inventories/*.inv
    python docs/inventories.py --check     compare each entry with the project's own inventory (needs a network)

These are not the projects' whole inventories: they hold the names below and nothing else. Add a name here to link it.
"""

from __future__ import annotations

import sys
import zlib
from pathlib import Path
from urllib.request import Request, urlopen

FOLDER = Path(__file__).parent / "inventories"

PROJECTS = {
    "gymnasium": "https://gymnasium.farama.org/",
    "numpy": "https://numpy.org/doc/stable/",
    "torch": "https://docs.pytorch.org/docs/stable/",
}
NAMES = {
    "gymnasium": """
        gymnasium.Env                          class     api/env/#$
        gymnasium.Wrapper                      class     api/wrappers/#$
        gymnasium.make                         function  api/registry/#$
        gymnasium.make_vec                     function  api/registry/#$
        gymnasium.register                     function  api/registry/#$
        gymnasium.vector.VectorEnv             class     api/vector/#$
        gymnasium.vector.AsyncVectorEnv        class     api/vector/async_vector_env/#$
        gymnasium.vector.SyncVectorEnv         class     api/vector/sync_vector_env/#$
    """,
    "numpy": """
        numpy.ndarray                          class     reference/generated/numpy.ndarray.html#$
        numpy.random.Generator                 class     reference/random/generator.html#$
        numpy.random.SeedSequence              class     reference/random/bit_generators/generated/$.html#$
        numpy.random.default_rng               function  reference/random/generator.html#$
    """,
    "torch": """
        torch.Tensor                           class     tensors.html#$
        torch.nn.Module                        class     generated/torch.nn.Module.html#$
        torch.optim.Adam                       class     generated/torch.optim.Adam.html#$
        torch.vmap                             function  generated/torch.vmap.html#$
    """,
}


def entries(project: str) -> dict[str, tuple[str, str]]:
    """Return the kind and the place of each name; `$` in a place stands for the name, as in Sphinx's own format."""
    rows = [line.split() for line in NAMES[project].strip().splitlines()]
    return {name: (kind, place.replace("$", name)) for name, kind, place in rows}


def inventory(project: str) -> bytes:
    """Return the file that Sphinx reads: version 2 of its format."""
    head = f"# Sphinx inventory version 2\n# Project: {project}\n# Version: \n# The rest is compressed with zlib.\n"
    lines = [f"{name} py:{kind} 1 {place} -\n" for name, (kind, place) in sorted(entries(project).items())]
    return head.encode() + zlib.compress("".join(lines).encode(), 9)


def differences(project: str) -> list[str]:
    """Return the names that the project's own inventory does not have, or has elsewhere."""
    request = Request(PROJECTS[project] + "objects.inv", headers={"User-Agent": "Mozilla/5.0"})
    with urlopen(request, timeout=30) as answer:
        packed = answer.read().split(b"\n", 4)[4]
    theirs: dict[str, str] = {}
    for line in zlib.decompress(packed).decode().splitlines():
        name, kind, _, place, *_ = line.split(" ")
        if kind.startswith("py:"):
            theirs[name] = place.replace("$", name)
    found = []
    for name, (_, place) in entries(project).items():
        if theirs.get(name) != place:
            found.append(f"{name}: {place} here, {theirs.get(name, 'nothing')} there")
    return found


def main() -> None:
    """Write the files, or compare them."""
    if "--check" in sys.argv[1:]:
        sys.exit("\n".join(line for project in PROJECTS for line in differences(project)) or 0)
    FOLDER.mkdir(exist_ok=True)
    for project in PROJECTS:
        (FOLDER / f"{project}.inv").write_bytes(inventory(project))


if __name__ == "__main__":
    main()
