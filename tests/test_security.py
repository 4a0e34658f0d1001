"""What hostile files and names can do: nothing but be refused, or be shown as text."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import hetcal

SOURCES = sorted(Path(hetcal.__file__).parent.rglob("*.py"))
# Modules that run code when they read, and those whose parsers expand what a file asks them to.
BANNED_MODULES = {
    "pickle",
    "cPickle",
    "_pickle",
    "dill",
    "cloudpickle",
    "marshal",
    "shelve",
    "joblib",
    "yaml",
    "xml",
}
BANNED_CALLS = {"eval", "exec", "compile", "__import__", "system", "popen"}


def name_of(call: ast.Call) -> str:
    """Last part of what is called: ``load`` of ``np.load(…)``."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def owner_of(call: ast.Call) -> str:
    """First part of what is called: ``np`` of ``np.load(…)``."""
    value = call.func.value if isinstance(call.func, ast.Attribute) else None
    return getattr(value, "id", "")


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield str(node.module).split(".")[0]


def dangers(text: str) -> list[str]:
    """What a source must not hold, by line."""
    tree = ast.parse(text)
    found = [f"import {name}" for name in imported(tree) if name in BANNED_MODULES]
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name, owner = name_of(call), owner_of(call)
        options = {k.arg: getattr(k.value, "value", None) for k in call.keywords}
        bare = isinstance(call.func, ast.Name) or owner in ("os", "builtins")
        unsafe = {
            "runs code": name in BANNED_CALLS and bare,
            "np.load": owner in ("np", "numpy")
            and name == "load"
            and options.get("allow_pickle") is not False,
            "torch.load": owner == "torch" and name == "load" and options.get("weights_only") is not True,
            "shell": "shell" in options,
            "unpacks": name in ("extractall", "extract", "unpack_archive")
            and options.get("filter") != "data",
        }
        found += [
            f"{what} in line {call.lineno}: {ast.unparse(call)}" for what, is_so in unsafe.items() if is_so
        ]
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.stem)
def test_no_source_can_run_what_it_reads(path: Path) -> None:
    assert dangers(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "text",
    [
        "import pickle", "from pickle import loads", "def f():\n import marshal", "eval('1')",
        "os.system('ls')", "np.load(f)", "np.load(f, allow_pickle=True)", "torch.load(f)",
        "subprocess.run('ls', shell=True)",
        "tar.extractall(folder)", "yaml.load(f); import yaml",
    ],
)  # fmt: skip
def test_the_search_for_dangers_finds_them(text: str) -> None:
    assert dangers(text)
