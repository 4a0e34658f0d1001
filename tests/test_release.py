"""`make release` checks versions and the tree, and derives the conda recipes from the metadata."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from typing import Any

import pytest

import hetcal

pytest.importorskip("packaging")
ROOT = Path(__file__).parent.parent
VERSION_FILES = [
    "src/hetcal/_version.py",
    "paper/src/hetcal_paper/_version.py",
    "paper/pyproject.toml",
    "CHANGELOG.md",
    "CITATION.cff",
]


@pytest.fixture(scope="module")
def tool() -> Any:
    spec = importlib.util.spec_from_file_location("hetcal_tools_release", ROOT / "tools" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their annotations there
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def packages(tool: Any) -> Any:
    return tool.read_packages("1.2.3")


def test_this_repository_states_one_version(tool: Any) -> None:
    assert tool.check_versions() == hetcal.__version__


@pytest.mark.parametrize("name", VERSION_FILES)
def test_a_file_with_another_version_is_named(tool: Any, name: str, tmp_path: Path) -> None:
    for path in VERSION_FILES:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    assert tool.check_versions(tmp_path) == hetcal.__version__
    text = (tmp_path / name).read_text(encoding="utf-8")
    for changed in (text.replace(hetcal.__version__, "9.9.9", 1), ""):
        (tmp_path / name).write_text(changed, encoding="utf-8")
        with pytest.raises(tool.ReleaseError, match=rf"(9\.9\.9|no version) +{name}"):
            tool.check_versions(tmp_path)


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_changed_and_new_files_are_named(tool: Any, tmp_path: Path) -> None:
    def git(*words: str) -> None:
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True)  # noqa: S607

    (tmp_path / "old").write_text("1")
    git("init")
    git("add", ".")
    git("commit", "-m", "first")
    tool.check_tree(tmp_path)
    (tmp_path / "new").touch()
    with pytest.raises(tool.ReleaseError, match="new"):
        tool.check_tree(tmp_path)
    git("add", ".")
    git("commit", "-m", "second")
    tool.check_tree(tmp_path)
    (tmp_path / "old").write_text("2")
    with pytest.raises(tool.ReleaseError, match="old"):
        tool.check_tree(tmp_path)


def test_extras_of_our_packages_are_expanded_for_conda(tool: Any) -> None:
    extras = {"a": ["x>=1", "ours[b]"], "b": ["torch>=2", "dask[array]>=3"], "c": ["x<4"]}
    ours = tool.Package("ours", "1.0", {"optional-dependencies": extras}, [])
    translate = tool.conda_requirements
    assert translate(["numpy", "ours[a]>=1.0"], {"ours": ours}) == {
        "numpy": "numpy",
        "ours": "ours >=1.0",
        "x": "x >=1",
        "pytorch": "pytorch >=2",
        "dask-core": "dask-core >=3",
    }
    assert set(translate(["x>=1", "ours[c]"], {"ours": ours})["x"][2:].split(",")) == {">=1", "<4"}
    for line in ("x>=1; sys_platform == 'win32'", "x @ https://example.org/x.whl", "x[more]>=1"):
        with pytest.raises(tool.ReleaseError, match="requirements must"):
            translate([line], {"ours": ours})


@pytest.mark.parametrize("name", ["hetcal", "hetcal-paper"])
def test_recipes_contain_all_requirements(tool: Any, packages: Any, name: str) -> None:
    folder = ROOT / {"hetcal": ".", "hetcal-paper": "paper"}[name]
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    recipe = tool.recipe(packages[name], "ab" * 32, packages)
    run = recipe["requirements"]["run"]
    optional = recipe["requirements"]["run_constraints"]
    assert recipe["source"]["sha256"] == "ab" * 32
    assert recipe["context"] == {"version": "1.2.3", "python_min": "3.11"}
    own = [line.replace(">=", " >=") for line in project["dependencies"] if "[" not in line]
    assert set(own) <= set(run)
    assert not {line.split()[0] for line in run} & {line.split()[0] for line in optional}
    text = recipe["about"]["description"]
    assert all(
        f"- {extra}: " in text for extra in project["optional-dependencies"].keys() - {"all", "dev", "docs"}
    )
    assert not any("[" in line for line in (*run, *optional))


def test_recipe_of_the_paper_contains_the_extras_that_it_needs(tool: Any, packages: Any) -> None:
    run = tool.recipe(packages["hetcal-paper"], "", packages)["requirements"]["run"]
    names = {line.split()[0] for line in run}
    assert {"hetcal", "typer", "rich", "matplotlib-base", "pytorch"} <= names
    assert "torch" not in names


def test_differences_between_builds_are_named(tool: Any, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        for member in ("same", "other"):
            (tmp_path / member).write_text(folder if member == "other" else "")
        with tarfile.open(tmp_path / folder / "x.tar.gz", "w:gz") as tar:
            tar.add(tmp_path / "same", "same")
            tar.add(tmp_path / "other", "other")
    tool.compare_builds(tmp_path / "a", tmp_path / "a")
    with pytest.raises(tool.ReleaseError, match=r"differences in other$"):
        tool.compare_builds(tmp_path / "a", tmp_path / "b")


def test_both_packages_contain_the_licence() -> None:
    assert (ROOT / "LICENSE").read_bytes() == (ROOT / "paper" / "LICENSE").read_bytes()


def test_tools_and_tests_use_the_same_versions() -> None:
    pins = [
        dict(
            line.split("==")
            for line in (ROOT / name).read_text(encoding="utf-8").splitlines()
            if "==" in line
        )
        for name in ("constraints.txt", "tools/requirements.txt")
    ]
    common = pins[0].keys() & pins[1].keys()
    assert "hatchling" in common
    assert {name: pins[0][name] for name in common} == {name: pins[1][name] for name in common}
