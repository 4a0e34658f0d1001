"""Find installed dependencies that constraints.txt does not pin.

    python tools/pins.py           # list them; the exit code is 1 if there are any
    python tools/pins.py --write   # pin the installed versions

The search starts from the requirements in both pyproject.toml files and follows those of the packages in the
running environment. A package that another package requires in one exact version, such as
PyTorch's CUDA libraries, needs no pin.
"""

from __future__ import annotations

import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
HEADER = "# Tested versions, which `make` installs. Written by tools/pins.py --write.\n"


def pinned() -> dict[str, str]:
    """Return the versions in constraints.txt by package name."""
    lines = CONSTRAINTS.read_text(encoding="utf-8").splitlines()
    pairs = (line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pairs}


def needed() -> dict[str, str]:
    """Return the installed version of every package that hetcal and hetcal-paper need.

    For hetcal, this includes what the build and the extras `dev` and `docs` need.
    """
    project = _project(ROOT)
    extras = project["project"]["optional-dependencies"]
    lines = [*project["build-system"]["requires"], *project["project"]["dependencies"], "hetcal[dev,docs]"]
    lines += _project(ROOT / "paper")["project"]["dependencies"]
    queue = [(Requirement(line), False) for line in lines]
    versions: dict[str, str] = {}
    seen: set[str] = set()
    while queue:
        requirement, is_exact = queue.pop()
        key = canonicalize_name(requirement.name)
        for extra in [*requirement.extras, ""]:
            if (label := f"{key}[{extra}]") in seen:
                continue
            seen.add(label)
            if key == "hetcal":
                queue += [(Requirement(line), False) for line in extras.get(extra, [])]
            else:
                version, children = _installed(key, extra)
                versions |= {} if is_exact or version is None else {key: version}
                queue += children
    return versions


def _project(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))


def _installed(name: str, extra: str) -> tuple[str | None, list[tuple[Requirement, bool]]]:
    """Return the installed version or None, and the requirements with a flag for exact versions."""
    try:
        distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None, []
    lines = map(Requirement, distribution.requires or [])
    active = [r for r in lines if r.marker is None or r.marker.evaluate({"extra": extra})]
    return distribution.version, [(r, any(s.operator == "==" for s in r.specifier)) for r in active]


def main() -> int:
    """List unpinned packages, or pin the installed versions of all that are needed."""
    installed = needed()
    if "--write" in sys.argv[1:]:
        all_pins = pinned() | installed  # keep the pins of packages that are not installed here
        pins = (f"{name}=={version.split('+')[0]}\n" for name, version in sorted(all_pins.items()))
        CONSTRAINTS.write_text(HEADER + "".join(pins), encoding="utf-8")
        return 0
    missing = sorted(installed.keys() - pinned().keys())
    for name in missing:
        print(f"{name}=={installed[name]} is installed but not pinned in constraints.txt")
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main())
