"""What `pip install .[dev,docs]` has brought here and constraints.txt does not pin.

    python tools/pins.py           # list it; exit code 1 where there is any
    python tools/pins.py --write   # pin what is installed here

Requirements are followed from pyproject.toml through the packages of the running environment. A package that
its parent demands in one exact version, as PyTorch does with its CUDA libraries, is pinned by that.
"""

from __future__ import annotations

import sys
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
HEAD = "# Versions that the tests were run with; `make` installs these. Written by tools/pins.py --write.\n"


def pinned() -> dict[str, str]:
    """Versions in constraints.txt by name."""
    lines = CONSTRAINTS.read_text(encoding="utf-8").splitlines()
    pairs = (line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pairs}


def needed() -> dict[str, str]:
    """Installed versions, by name, of all that the build, the package, `dev` and `docs` need."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"]
    lines = [*project["build-system"]["requires"], *project["project"]["dependencies"], "hetcal[dev,docs]"]
    todo = [(Requirement(line), False) for line in lines]
    found: dict[str, str] = {}
    seen: set[str] = set()
    while todo:
        requirement, exact = todo.pop()
        key = canonicalize_name(requirement.name)
        for extra in [*requirement.extras, ""]:
            if (place := f"{key}[{extra}]") in seen:
                continue
            seen.add(place)
            if key == "hetcal":
                todo += [(Requirement(line), False) for line in extras.get(extra, [])]
            else:
                version, children = _installed(key, extra)
                found |= {} if exact or version is None else {key: version}
                todo += children
    return found


def _installed(name: str, extra: str) -> tuple[str | None, list[tuple[Requirement, bool]]]:
    """Version here, if any, and what it needs with one extra; with each whether the version is exact."""
    try:
        found = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None, []
    lines = map(Requirement, found.requires or [])
    wanted = [r for r in lines if r.marker is None or r.marker.evaluate({"extra": extra})]
    return found.version, [(r, any(s.operator == "==" for s in r.specifier)) for r in wanted]


def main() -> int:
    """List what is not pinned, or pin it."""
    here = needed()
    if "--write" in sys.argv[1:]:
        both = pinned() | here  # what is not installed here, such as the packages of the site, stays as it is
        pins = (f"{name}=={version.split('+')[0]}\n" for name, version in sorted(both.items()))
        CONSTRAINTS.write_text(HEAD + "".join(pins), encoding="utf-8")
        return 0
    missing = sorted(here.keys() - pinned().keys())
    for name in missing:
        print(f"{name}=={here[name]} is installed, but not pinned in constraints.txt")
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main())
