"""The lists of versions agree with each other and with what is installed."""

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


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"hetcal_tools_{name}", ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made  # where dataclasses look their annotations up
    spec.loader.exec_module(made)
    return made


def test_the_lowest_versions_are_those_of_the_project() -> None:
    compatibility = tool("compatibility")
    assert compatibility.LOWEST.read_text(encoding="utf-8") == compatibility.lowest_text()


def test_lower_bounds_come_from_the_core_and_every_extra() -> None:
    bounds = tool("compatibility").lower_bounds
    extras = {"a": ["x[array]>=2024.8", "hetcal[b]"], "b": ["y>=1"], "dev": ["z>=3"]}
    project = {"dependencies": ["w-v>=1.2.3"], "optional-dependencies": extras}
    assert bounds(project) == {"w-v": "1.2.3", "x": "2024.8", "y": "1"}
    with pytest.raises(ValueError, match="name>=version, got 'w<2'"):
        bounds(project | {"dependencies": ["w<2"]})


def test_all_that_the_tests_install_is_pinned() -> None:
    pytest.importorskip("packaging")
    pins = tool("pins")
    assert sorted(pins.needed().keys() - pins.pinned().keys()) == []  # tools/pins.py --write pins them


def test_pins_follow_requirements_to_their_end() -> None:
    pytest.importorskip("packaging")
    needed = tool("pins").needed()
    assert {"numpy", "joblib", "pytest", "iniconfig"} <= needed.keys()
    assert "hetcal" not in needed


def test_pins_respect_the_lower_bounds() -> None:
    version = pytest.importorskip("packaging.version").Version
    pinned = tool("pins").pinned()
    for name, lowest in tool("compatibility").lower_bounds(PROJECT).items():
        assert version(pinned[name]) >= version(lowest), name


def test_classifiers_name_the_pythons_from_the_lowest_on() -> None:
    found = [c.split(":: ")[-1] for c in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d", c)]
    assert f">={found[0]}" == PROJECT["requires-python"]
    assert found == [f"3.{minor}" for minor in range(11, 11 + len(found))]
