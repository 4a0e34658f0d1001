"""Generate pages of the site: the API reference, the command line, and copies of files in the root."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import hetcal

__all__ = ["CONTENTS", "MODULES", "list_linked_pages", "write_pages"]

# Files in the repository root that the site includes, by page name. Missing files are skipped.
_ROOT_FILES = {"changelog": "CHANGELOG.md", "contributing": "CONTRIBUTING.md", "security": "SECURITY.md"}

_TOP_LEVEL = {
    "Calibrators": [*hetcal.calibrators.__all__, "CalibratedClassifier"],
    "Evaluation and diagnosis": [
        "evaluate", "Evaluation", "diagnose", "Diagnosis", "noise_floor", "bootstrap", "make_report",
    ],
    "Planning": ["plan_validation_size"],
    "Input and output": [
        "load_logits", "load_example", "to_logits", "binary_logits", "Batches", "save", "load",
    ],
    "Warnings": ["CalibrationWarning", "SpeedHint"],
}  # fmt: skip
# Modules with a page of their own. Modules that do not exist are skipped.
_MODULE_TITLES = {
    "files": "Reading logits and saving calibrators",
    "metrics": "Metrics and noise floors",
    "plots": "Figures",
    "report": "Reports and limits for CI",
    "planning": "Size of the validation set",
    "partition": "Slices of rows",
    "label_noise": "Wrong validation labels",
    "corruption": "Synthetic label noise and undersampling",
    "theory": "The paper's theorems",
    "torch": "PyTorch",
    "torchmetrics": "Streaming metric for torchmetrics",
    "lightning": "Callback for Lightning",
    "huggingface": "Metrics for Hugging Face",
    "onnx": "ONNX",
    "mlflow": "MLflow",
    "dask": "Dask",
}
# Modules whose public names are all documented at the top level.
_UNDOCUMENTED_MODULES = {"calibrators", "examples", "sklearn"}


def _is_module(name: str) -> bool:
    package = Path(hetcal.__file__).parent
    return (package / f"{name}.py").is_file() or (package / name / "__init__.py").is_file()


_PUBLIC_MODULES = {name for name in hetcal.__all__ if _is_module(name)}
_PUBLIC_NAMES = set(hetcal.__all__) - _PUBLIC_MODULES - {"__version__"}
MODULES = {name: title for name, title in _MODULE_TITLES.items() if _is_module(name)}


def _contents() -> str:
    pages = {
        "Start": ["five-minutes", "choosing"],
        "How to": [
            "get-your-logits",
            "per-class",
            "groups",
            "production",
            "scikit-learn",
            "torchmetrics",
            "lightning",
            "hugging-face",
            "mlflow",
            "label-noise",
            "large-data",
            "ci-gate",
            "planning",
        ],
        "Notebooks": ["notebooks/five-minutes", "notebooks/per-class", "notebooks/groups"],
        "Concepts": ["what-ece-hides", "noise-floors", "gamma", "conventions", "theory"],
        "Evidence": [
            "reproduction/index",
            "arena",
            "text-example",
            "performance",
            "performance-versions",
            "determinism",
            "compatibility",
            "mutation-testing",
        ],
        "Reference": ["generated/hetcal", "generated/modules", "generated/command-line"],
        "Project": [f"generated/{page}" for page, name in _ROOT_FILES.items() if _in_root(name)],
    }
    return "".join(
        f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n" + "\n".join(names) + "\n```\n"
        for title, names in pages.items()
    )


def _in_root(name: str) -> bool:
    return Path(__file__).parent.parent.joinpath(name).is_file()


CONTENTS = _contents()


def list_linked_pages(text: str) -> str:
    """Return a hidden table of contents of the pages in the same folder that `text` links to, in order."""
    names = dict.fromkeys(re.findall(r"\]\(([\w-]+)\.md(?:#[\w-]+)?\)", text))
    return "\n```{toctree}\n:hidden:\n\n" + "\n".join(names) + "\n```\n"


def write_pages(folder: Path, root: Path) -> None:
    """Write all generated pages into `folder`, which git ignores, and delete pages of earlier builds."""
    folder.mkdir(exist_ok=True)
    pages = {"hetcal": _top_level_page(), "modules": _modules_page(), "command-line": _command_line()}
    pages |= {f"module-{name}": _module_page(name, title) for name, title in MODULES.items()}
    pages |= {
        page: _from_root((root / name).read_text(encoding="utf-8"))
        for page, name in _ROOT_FILES.items()
        if _in_root(name)
    }
    for name, text in pages.items():
        _write_if_changed(folder / f"{name}.md", text)
    for stale in {path.stem for path in folder.glob("*.md")} - set(pages):
        (folder / f"{stale}.md").unlink()


def _write_if_changed(path: Path, text: str) -> None:
    # Sphinx reads a page again when its modification time changes.
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def _top_level_page() -> str:
    listed = {name for names in _TOP_LEVEL.values() for name in names}
    missing = (_PUBLIC_NAMES - listed) | (_PUBLIC_MODULES - set(MODULES) - _UNDOCUMENTED_MODULES)
    if missing:
        raise ValueError(
            f"_TOP_LEVEL and _MODULE_TITLES must list every public name, got {sorted(missing)} in neither; "
            "add each of them to one of the two"
        )
    parts = [
        (
            "# hetcal\n\nThe public classes and functions of the package `hetcal`. Each is imported on first "
            "use. Further names are in the [modules](modules.md).\n"
        )
    ]
    for title, names in _TOP_LEVEL.items():
        parts += [f"## {title}\n", *(_directive("hetcal", name) for name in names)]
    return "\n".join(parts)


def _modules_page() -> str:
    lines = [f"- [`hetcal.{name}`](module-{name}.md): {title}." for name, title in MODULES.items()]
    toctree = "\n".join(f"module-{name}" for name in MODULES)
    return "\n".join(["# Modules\n", *lines, f"\n```{{toctree}}\n:hidden:\n\n{toctree}\n```\n"])


def _module_page(module: str, title: str) -> str:
    names = _public_names(module)
    own_names = [name for name in names if name not in _PUBLIC_NAMES]
    automodule = f"```{{eval-rst}}\n.. automodule:: hetcal.{module}\n```\n"
    parts = [f"# hetcal.{module}\n", f"{title}.\n", automodule]
    if top_level := [name for name in names if name in _PUBLIC_NAMES]:
        links = ", ".join(f"{{py:obj}}`hetcal.{name}`" for name in top_level)
        parts.append(f"This module also exports these names, which [hetcal](hetcal.md) documents: {links}.\n")
    return "\n".join([*parts, *(_directive(f"hetcal.{module}", name) for name in own_names)])


def _public_names(module: str) -> list[str]:
    """Return `__all__` of a module without importing it, because an optional dependency may be missing."""
    package = Path(hetcal.__file__).parent
    source = next(p for p in (package / f"{module}.py", package / module / "__init__.py") if p.is_file())
    text = source.read_text(encoding="utf-8")
    listed = re.search(r"^__all__ = \[(.*?)\]", text, re.DOTALL | re.MULTILINE)
    return re.findall(r'"(\w+)"', listed[1]) if listed else []


def _directive(module: str, name: str) -> str:
    kind = _kind(module, name)
    lines = [f".. auto{kind}:: {module}.{name}"]
    if kind == "class":
        lines += ["   :members:"]
    return "\n".join(["```{eval-rst}", *lines, "```", ""])


def _kind(module: str, name: str) -> str:
    if name.isupper():
        return "data"
    if not name[0].isupper():
        return "function"
    value = getattr(hetcal, name) if module == "hetcal" else None
    return "exception" if inspect.isclass(value) and issubclass(value, Warning) else "class"


def _command_line() -> str:
    importlib.import_module("hetcal.cli")  # its ImportError is clearer than the error of the subprocess
    command = [sys.executable, "-m", "typer", "hetcal.cli", "utils", "docs", "--name", "hetcal"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603
    text = text.replace("# `hetcal`", "# Command line", 1).replace("&#x27;", "'")
    for name, summary in re.findall(r"^## `hetcal (\w+)`\n\n(.+)$", text, re.MULTILINE):
        entry = f"* [`hetcal {name}`](#hetcal-{name}): {summary}"
        text = re.sub(rf"^\* `{name}`: .*$", entry, text, flags=re.MULTILINE)
    return text


def _from_root(text: str) -> str:
    """Rewrite the links of a file in the repository root for the folder of generated pages."""
    generated = {name: f"{page}.md" for page, name in _ROOT_FILES.items()}

    def rewrite(match: re.Match[str]) -> str:
        target = match[1]
        if re.match(r"[a-z]+:|#", target):
            return match[0]
        if target in generated:
            return f"]({generated[target]})"
        return f"](../{target.removeprefix('docs/')})" if target.startswith("docs/") else f"](../../{target})"

    return re.sub(r"\]\(([^)\s]+)\)", rewrite, text)
