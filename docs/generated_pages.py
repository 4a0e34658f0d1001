"""Pages of the site that come from code: the reference, the command line, and files of the root."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import hetcal

__all__ = ["CONTENTS", "ROOMS", "list_linked_pages", "write_pages"]

# Files of the root that the site shows too, by the page's name. One that is missing is left out.
_ROOT = {"changelog": "CHANGELOG.md", "contributing": "CONTRIBUTING.md", "security": "SECURITY.md"}

_TOP = {
    "Calibrators": [*hetcal.calibrators.__all__, "CalibratedClassifier"],
    "Judging": ["evaluate", "Evaluation", "diagnose", "Diagnosis", "noise_floor", "bootstrap", "make_report"],
    "Planning": ["plan_validation_size"],
    "Rows in, calibrators out": [
        "load_logits", "load_example", "to_logits", "binary_logits", "Batches", "save", "load",
    ],
    "Warnings": ["CalibrationWarning", "SpeedHint"],
}  # fmt: skip
ROOMS = {
    "files": "Files of logits and of calibrators",
    "metrics": "Metrics and noise floors",
    "plots": "Figures",
    "report": "Reports and gates",
    "planning": "How many rows",
    "partition": "Slices of rows",
    "corruption": "Spoiling data on purpose",
    "theory": "The paper's theorems",
    "torch": "PyTorch",
    "onnx": "ONNX",
    "dask": "Dask",
}
# All that they have is among the top names, or is the command line's.
_NO_PAGE = {"calibrators", "sklearn"}


def _contents() -> str:
    pages = {
        "Start": ["five-minutes", "choosing"],
        "How to": ["per-class", "groups", "production", "scikit-learn", "large-data", "ci-gate", "planning"],
        "Understand": ["what-ece-hides", "noise-floors", "gamma", "conventions", "theory"],
        "Evidence": ["reproduction/index", "text-example", "performance", "determinism", "compatibility"],
        "Reference": ["generated/hetcal", "generated/rooms", "generated/command-line"],
        "Project": [f"generated/{page}" for page, name in _ROOT.items() if _in_root(name)],
    }
    return "".join(
        f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n" + "\n".join(names) + "\n```\n"
        for title, names in pages.items()
    )


def _in_root(name: str) -> bool:
    return Path(__file__).parent.parent.joinpath(name).is_file()


CONTENTS = _contents()


def list_linked_pages(text: str) -> str:
    """Return a hidden table of contents with the pages of the same folder that a page links to, in order."""
    names = dict.fromkeys(re.findall(r"\]\(([\w-]+)\.md(?:#[\w-]+)?\)", text))
    return "\n```{toctree}\n:hidden:\n\n" + "\n".join(names) + "\n```\n"


def write_pages(folder: Path, root: Path) -> None:
    """Write all of them into `folder`, which git ignores."""
    folder.mkdir(exist_ok=True)
    pages = {"hetcal": _top_page(), "rooms": _rooms_page(), "command-line": _command_line()}
    pages |= {f"room-{room}": _room_page(room, title) for room, title in ROOMS.items()}
    pages |= {
        page: _from_root((root / name).read_text(encoding="utf-8"))
        for page, name in _ROOT.items()
        if _in_root(name)
    }
    for name, text in pages.items():
        _write_if_new(folder / f"{name}.md", text)
    for old in {path.stem for path in folder.glob("*.md")} - set(pages):
        (folder / f"{old}.md").unlink()


def _write_if_new(path: Path, text: str) -> None:
    # Sphinx reads pages again when their time changes.
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def _top_page() -> str:
    listed = [name for names in _TOP.values() for name in names]
    missing = set(hetcal._NAMES) - set(listed) | set(hetcal._MODULES) - set(ROOMS) - _NO_PAGE
    if missing:
        raise ValueError(f"_TOP and ROOMS must list what is public, got none of {sorted(missing)}; add them")
    parts = ["# hetcal\n\nWhat `import hetcal` gives. Names are loaded when first asked for.\n"]
    for title, names in _TOP.items():
        parts += [f"## {title}\n", *(_directive("hetcal", name) for name in names)]
    return "\n".join(parts)


def _rooms_page() -> str:
    lines = [f"- [`hetcal.{room}`](room-{room}.md): {title}." for room, title in ROOMS.items()]
    toctree = "\n".join(f"room-{room}" for room in ROOMS)
    return "\n".join(["# Modules\n", *lines, f"\n```{{toctree}}\n:hidden:\n\n{toctree}\n```\n"])


def _room_page(room: str, title: str) -> str:
    # Through Sphinx's stand-ins for packages that are not installed, hence at reading time: names only here.
    names = _public_names(room)
    own = [name for name in names if name not in hetcal._NAMES]
    parts = [f"# hetcal.{room}\n", f"{title}.\n", f"```{{eval-rst}}\n.. automodule:: hetcal.{room}\n```\n"]
    if also := [name for name in names if name in hetcal._NAMES]:
        links = ", ".join(f"{{py:obj}}`hetcal.{name}`" for name in also)
        parts.append(f"Also here, and described under [hetcal](hetcal.md): {links}.\n")
    return "\n".join([*parts, *(_directive(f"hetcal.{room}", name) for name in own)])


def _public_names(room: str) -> list[str]:
    """`__all__` of a room, read as text: importing it may need a package that is not installed."""
    home = Path(hetcal.__file__).parent
    source = next(p for p in (home / f"{room}.py", home / room / "__init__.py") if p.is_file())
    listed = re.search(r"^__all__ = \[(.*?)\]", source.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return re.findall(r'"(\w+)"', listed[1]) if listed else []


def _directive(place: str, name: str) -> str:
    lines = [f".. auto{_kind(place, name)}:: {place}.{name}"]
    if _kind(place, name) == "class":
        lines += ["   :members:"]
    return "\n".join(["```{eval-rst}", *lines, "```", ""])


def _kind(place: str, name: str) -> str:
    if name.isupper():
        return "data"
    if name[0].isupper():
        warning = place == "hetcal" and inspect.isclass(thing := getattr(hetcal, name))
        return "exception" if warning and issubclass(thing, Warning) else "class"
    return "function"


def _command_line() -> str:
    importlib.import_module("hetcal.cli")  # says what is missing, if anything, better than the command does
    command = [sys.executable, "-m", "typer", "hetcal.cli", "utils", "docs", "--name", "hetcal"]
    made = subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603
    made = made.replace("# `hetcal`", "# Command line", 1).replace("&#x27;", "'")
    for name, told in re.findall(r"^## `hetcal (\w+)`\n\n(.+)$", made, re.MULTILINE):
        made = re.sub(rf"^\* `{name}`: .*$", f"* [`hetcal {name}`](#hetcal-{name}): {told}", made, flags=re.M)
    return made


def _from_root(text: str) -> str:
    """Links of a file in the root, as seen from the folder of generated pages."""
    inside = {name: f"{page}.md" for page, name in _ROOT.items()}

    def move(match: re.Match[str]) -> str:
        target = match[1]
        if re.match(r"[a-z]+:|#", target):
            return match[0]
        bare = target.removeprefix("docs/")
        return f"]({inside.get(target, f'../{bare}' if bare != target else f'../../{target}')})"

    return re.sub(r"\]\(([^)\s]+)\)", move, text)
