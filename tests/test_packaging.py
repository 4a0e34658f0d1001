"""Version lists are consistent with each other and with the installed packages."""

from __future__ import annotations

import importlib.util
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def load_tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"hetcal_tools_{name}", ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their annotations there
    spec.loader.exec_module(module)
    return module


def test_lowest_versions_match_the_project() -> None:
    compatibility = load_tool("compatibility")
    assert compatibility.LOWEST.read_text(encoding="utf-8") == compatibility.lowest_text()


def test_compatibility_runs_existing_test_files() -> None:
    compatibility = load_tool("compatibility")
    names = (*compatibility.TESTS, *compatibility.WITH_TORCH)
    assert [name for name in names if not (ROOT / "tests" / name).is_file()] == []


@pytest.mark.parametrize("path", sorted((ROOT / "tools" / "mutation").glob("*.toml")), ids=lambda p: p.stem)
def test_mutation_configurations_name_existing_files(path: Path) -> None:
    config = tomllib.loads(path.read_text(encoding="utf-8"))["cosmic-ray"]
    tests = [word for word in config["test-command"].split() if word.startswith("tests/")]
    assert tests
    assert [name for name in (*config["module-path"], *tests) if not (ROOT / name).exists()] == []


def test_lower_bounds_of_the_core_and_every_extra() -> None:
    bounds = load_tool("compatibility").lower_bounds
    extras = {"a": ["x[array]>=2024.8", "hetcal[b]"], "b": ["y>=1"], "dev": ["z>=3"]}
    project = {"dependencies": ["w-v>=1.2.3"], "optional-dependencies": extras}
    assert bounds(project) == {"w-v": "1.2.3", "x": "2024.8", "y": "1"}
    with pytest.raises(ValueError, match="name>=version"):
        bounds(project | {"dependencies": ["w<2"]})


def test_every_test_dependency_is_pinned() -> None:
    pytest.importorskip("packaging")
    pins = load_tool("pins")
    assert sorted(pins.needed().keys() - pins.pinned().keys()) == []  # run tools/pins.py --write


def test_pins_follow_requirements_recursively() -> None:
    pytest.importorskip("packaging")
    needed = load_tool("pins").needed()
    assert {"numpy", "joblib", "pytest", "iniconfig"} <= needed.keys()
    assert "hetcal" not in needed


def test_pins_respect_the_lower_bounds() -> None:
    version = pytest.importorskip("packaging.version").Version
    pinned = load_tool("pins").pinned()
    for name, lowest in load_tool("compatibility").lower_bounds(PROJECT).items():
        assert version(pinned[name]) >= version(lowest), name


def test_install_lines_work_in_a_checkout() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("*/README.md"), *(ROOT / "docs").rglob("*.md")]
    paragraphs = [text for page in pages for text in page.read_text(encoding="utf-8").split("\n\n")]
    commands = [(text, words) for text in paragraphs for words in re.findall("pip install ([^`\n]+)", text)]
    assert len(commands) > 5
    for text, words in commands:
        for name, extras in re.findall(r"(\./[\w/-]+|\.|hetcal[\w-]*)(?:\[([\w,]+)\])?", words):
            assert set(filter(None, extras.split(","))) <= PROJECT["optional-dependencies"].keys(), words
            # The name alone works once the package is published.
            assert name.startswith(".") or "on PyPI" in " ".join(text.split()), words


def test_classifiers_list_consecutive_python_versions() -> None:
    versions = [c.split(":: ")[-1] for c in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d", c)]
    assert f">={versions[0]}" == PROJECT["requires-python"]
    assert versions == [f"3.{minor}" for minor in range(11, 11 + len(versions))]
