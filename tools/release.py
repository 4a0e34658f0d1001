"""Build the files of a release, check them, and write them to dist/; `make release` runs this.

    dist/*.tar.gz, dist/*.whl       hetcal and hetcal-paper, for PyPI
    dist/conda/NAME/recipe.yaml     their recipes, for conda-forge

The tree must be clean, and all files that state the version must agree. Both packages are built twice from
the last commit, the second time with the wheel from the source distribution, and the bytes must be the same.
The wheels are installed in a new environment and tried out. Files reach dist/ only if everything succeeds.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {"hetcal": ".", "hetcal-paper": "paper"}
# Every file that states the version, and how.
VERSIONS = {
    "src/hetcal/_version.py": r'^__version__ = "(.+)"$',
    "paper/src/hetcal_paper/_version.py": r'^__version__ = "(.+)"$',
    "paper/pyproject.toml": r'^dependencies = \["hetcal\[.+?\]>=(.+?)"',
    "CHANGELOG.md": r"^## (\S+)",
    "CITATION.cff": r"^version: (\S+)$",
}
# Packages that have another name on conda-forge. `dask[array]` is dask with numpy, which hetcal needs anyway.
CONDA_NAMES = {"dask[array]": "dask-core", "matplotlib": "matplotlib-base", "torch": "pytorch"}
# Commands that test the conda packages, and the extra of hetcal that they need.
CONDA_TESTS = {"hetcal": ("hetcal --help", "cli"), "hetcal-paper": ("hetcal reproduce example --json", None)}
NOT_FOR_USERS = ("all", "dev", "docs")  # extras that the recipes leave out


class ReleaseError(Exception):
    """The release cannot be made; the message says why."""


@dataclass(frozen=True)
class Package:
    """One of the two distributions, as its pyproject.toml describes it."""

    name: str
    version: str
    project: dict[str, Any]
    build_requires: list[str]

    @property
    def file_name(self) -> str:
        """Name of the package in file names and imports."""
        return self.name.replace("-", "_")

    @property
    def extras(self) -> dict[str, list[str]]:
        """Requirements of every extra."""
        return dict(self.project.get("optional-dependencies", {}))


# -- checks of the repository ---------------------------------------------------------------------


def check_versions(root: Path = ROOT) -> str:
    """Return the version, which all files must agree on."""
    stated: dict[str, str] = {}
    for name, pattern in VERSIONS.items():
        match = re.search(pattern, (root / name).read_text(encoding="utf-8"), re.MULTILINE)
        stated[name] = match[1] if match else "no version"
    if len(set(stated.values())) > 1:
        table = "".join(f"\n  {version:12} {name}" for name, version in stated.items())
        raise ReleaseError(f"all files must state the same version, got{table}")
    version = next(iter(stated.values()))
    if not re.fullmatch(r"\d+(\.\d+)*((a|b|rc)\d+)?", version):
        raise ReleaseError(f"the version must look like 1.2.3 or 1.2.3rc1, got {version}")
    return version


def check_tree(root: Path = ROOT) -> None:
    """Raise an error if there are changes that the last commit does not contain."""
    changes = run(["git", "status", "--porcelain"], cwd=root)
    if changes:
        raise ReleaseError(f"the working tree must be clean, got\n{changes}\ncommit or remove these files")


def read_packages(version: str, root: Path = ROOT) -> dict[str, Package]:
    """Read both pyproject.toml files."""
    packages = {}
    for name, folder in FOLDERS.items():
        content = tomllib.loads((root / folder / "pyproject.toml").read_text(encoding="utf-8"))
        packages[name] = Package(name, version, content["project"], content["build-system"]["requires"])
    return packages


# -- conda-forge ----------------------------------------------------------------------------------


def conda_requirements(lines: Iterable[str], packages: Mapping[str, Package]) -> dict[str, str]:
    """Translate requirements of pip to conda, by the name of the package.

    conda has no extras. An extra of our packages is replaced by its requirements.
    """
    queue = [Requirement(line) for line in lines]
    versions: dict[str, SpecifierSet] = {}
    for requirement in queue:  # grows inside the loop
        name, extras = requirement.name, sorted(requirement.extras)
        if requirement.marker or requirement.url:
            raise ReleaseError(
                f"requirements must be names with versions, got {requirement}; a recipe for all platforms "
                "cannot contain conditions and addresses"
            )
        if name in packages:
            queue += [Requirement(line) for extra in extras for line in packages[name].extras[extra]]
        else:
            name += f"[{','.join(extras)}]" if extras else ""
        name = CONDA_NAMES.get(name, name)
        if "[" in name:
            raise ReleaseError(f"requirements must have a conda name, got {name}; add it to CONDA_NAMES")
        versions[name] = versions.get(name, SpecifierSet()) & requirement.specifier
    return {name: f"{name} {version}".strip() for name, version in versions.items()}


def recipe(package: Package, sha256: str, packages: Mapping[str, Package]) -> dict[str, Any]:
    """Return the content of recipe.yaml, in version 1 of the format."""
    project, name = package.project, package.name
    run_requirements = conda_requirements(project["dependencies"], packages)

    def optional(*extras: str) -> list[str]:
        requirements = conda_requirements([f"{name}[{','.join(extras)}]"], packages)
        return [line for key, line in requirements.items() if key != name and key not in run_requirements]

    extras = [extra for extra in package.extras if extra not in NOT_FOR_USERS]
    build: dict[str, Any] = {
        "number": 0,
        "noarch": "python",
        "script": "${{ PYTHON }} -m pip install . -vv --no-deps --no-build-isolation",
    }
    if "scripts" in project:
        build["python"] = {"entry_points": [f"{key} = {value}" for key, value in project["scripts"].items()]}
    command, needed_extra = CONDA_TESTS[name]
    script: dict[str, Any] = {"script": [command]}
    if needed_extra:
        script["requirements"] = {"run": optional(needed_extra)}
    return {
        "schema_version": 1,
        "context": {
            "version": package.version,
            "python_min": project["requires-python"].removeprefix(">="),
        },
        "package": {"name": name, "version": "${{ version }}"},
        "source": {
            "url": f"https://pypi.org/packages/source/{name[0]}/{name}/"
            f"{package.file_name}-${{{{ version }}}}.tar.gz",
            "sha256": sha256,
        },
        "build": build,
        "requirements": {
            "host": [
                "python ${{ python_min }}.*",
                *conda_requirements(package.build_requires, packages).values(),
                "pip",
            ],
            "run": ["python >=${{ python_min }}", *run_requirements.values()],
            "run_constraints": optional(*extras),
        },
        "tests": [
            {
                "python": {
                    "imports": [package.file_name],
                    "pip_check": True,
                    "python_version": ["${{ python_min }}.*", "*"],
                }
            },
            script,
        ],
        "about": {
            "homepage": project.get("urls", {}).get("Homepage", f"https://pypi.org/project/{name}/"),
            "license": project["license"],
            "license_file": project["license-files"],
            "summary": project["description"],
            "description": _description(name, {extra: optional(extra) for extra in extras}),
        },
        "extra": {"recipe-maintainers": []},
    }


def _description(name: str, optional: Mapping[str, list[str]]) -> str:
    lines = [f"conda has no extras. Instead of `pip install {name}[EXTRA]`, install the packages:", ""]
    for extra, requirements in optional.items():
        words = " ".join(f'"{line.replace(" ", "")}"' for line in requirements)
        lines.append(f"- {extra}: `conda install -c conda-forge {words}`")
    return "\n".join([*lines, ""])


def write_recipe(path: Path, content: Mapping[str, Any]) -> None:
    """Write recipe.yaml, and check it with the parser of rattler-build, which builds for conda-forge."""
    import rattler_build
    import yaml

    class Dumper(yaml.SafeDumper):
        """Writes text of several lines as a block."""

    def represent_text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, represent_text)
    path.parent.mkdir(parents=True)
    path.write_text(yaml.dump(content, Dumper=Dumper, sort_keys=False, width=110), encoding="utf-8")
    try:
        (rendered,) = rattler_build.Stage0Recipe.from_file(path).render()
    except rattler_build.RattlerBuildError as error:
        raise ReleaseError(
            f"rattler-build must accept the recipe of {path.parent.name}, got {error}"
        ) from None
    names = [line.split()[0] for line in content["requirements"]["run"]]
    parsed = [line.split()[0] for line in rendered.recipe.to_dict()["requirements"]["run"]]
    if parsed != names:
        raise ReleaseError(f"rattler-build must read the requirements {names}, got {parsed}")


# -- building -------------------------------------------------------------------------------------


def build(work: Path, root: Path = ROOT) -> Path:
    """Build both packages from the last commit, twice, and return the folder with the files."""
    epoch = run(["git", "log", "-1", "--format=%ct"], cwd=root)
    archive = work / "commit.tar"
    run(["git", "archive", "--format=tar", "-o", str(archive), "HEAD"], cwd=root)
    # `python -m build` without options builds the wheel from the source distribution.
    for name, options, umask, zone in (
        ("first", ["--sdist", "--wheel"], 0o022, "UTC"),
        ("second", [], 0o077, "Asia/Tokyo"),
    ):
        source = work / name / "source"
        with tarfile.open(archive) as tar:
            tar.extractall(source, filter="data")
        command = [sys.executable, "-m", "build", "--no-isolation", *options]
        for folder in FOLDERS.values():
            words = [*command, "--outdir", str(work / name / "dist"), str(source / folder)]
            run(words, work, {"SOURCE_DATE_EPOCH": epoch, "TZ": zone}, umask=umask)
    compare_builds(work / "first" / "dist", work / "second" / "dist")
    return work / "first" / "dist"


def compare_builds(first: Path, second: Path) -> None:
    """Raise an error unless both folders contain the same files, byte by byte."""
    names = [sorted(path.name for path in folder.iterdir()) for folder in (first, second)]
    if names[0] != names[1]:
        raise ReleaseError(f"both builds must give the same files, got {names[0]} and {names[1]}")
    for name in names[0]:
        if (first / name).read_bytes() != (second / name).read_bytes():
            members = [set(_members(folder / name)) for folder in (first, second)]
            differing = sorted({member for member, _ in members[0] ^ members[1]})
            raise ReleaseError(
                f"both builds of {name} must have the same bytes, got differences in "
                f"{', '.join(differing) or 'the archive itself, but not in its files'}"
            )


def _members(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and the hash of every file in an archive."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            for name in wheel.namelist():
                yield name, hashlib.sha256(wheel.read(name)).hexdigest()
        return
    with tarfile.open(path) as tar:
        for member in tar.getmembers():
            file = tar.extractfile(member)
            yield member.name, hashlib.sha256(file.read() if file else b"").hexdigest()


# -- trying out -----------------------------------------------------------------------------------


def try_out(dist: Path, version: str, work: Path, root: Path = ROOT) -> None:
    """Install the wheels in a new environment, outside the repository, and use them."""
    wheel, paper = (dist / f"{name.replace('-', '_')}-{version}-py3-none-any.whl" for name in FOLDERS)
    home, folder = work / "environment", work / "empty"
    folder.mkdir()
    run([sys.executable, "-m", "venv", str(home)], cwd=folder)
    variables = {
        "PIP_CONSTRAINT": str(root / "constraints.txt"),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "XDG_CACHE_HOME": str(work / "cache"),  # so that the report's cache is empty
    }

    def call(*words: str, expected_exit: int = 0) -> str:
        command = [str(home / "bin" / words[0]), *words[1:]]
        return run(command, folder, variables, expected_exit=expected_exit)

    def check_import(module: str) -> None:
        code = f"import {module}; print({module}.__version__, {module}.__file__)"
        imported, _, path = call("python", "-c", code).partition(" ")
        if imported != version or not Path(path).is_relative_to(home):
            raise ReleaseError(f"{module} {version} must be imported from {home}, got {imported} from {path}")

    with step("install hetcal without extras, import it"):
        call("pip", "install", "--quiet", str(wheel))
        check_import("hetcal")
    with step("follow the error about the missing extra"):
        message = call("hetcal", "--version", expected_exit=2)
        advice = re.search(r"install it with: (pip install .+)", message)
        if advice is None:
            raise ReleaseError(f"hetcal without typer must say how to install it, got {message}")
        call(*shlex.split(advice[1]))
        if (printed := call("hetcal", "--version")) != f"hetcal {version}":
            raise ReleaseError(f"hetcal --version must print hetcal {version}, got {printed}")
    with step("install hetcal[cli,report], run the help and the demo"):
        call("pip", "install", "--quiet", f"{wheel}[cli,report]")
        if "report" not in call("hetcal", "--help"):
            raise ReleaseError("hetcal --help must list the commands")
        call("hetcal", "demo", "--output", "demo")
        if not list(folder.glob("demo/*.html")):
            raise ReleaseError("hetcal demo must write an HTML report, got none")
    with step("install hetcal-paper, reproduce a result"):
        call("pip", "install", "--quiet", str(wheel), str(paper))
        check_import("hetcal_paper")
        result = json.loads(call("hetcal", "reproduce", "example", "--json"))
        if result["name"] != "example" or not result["rows"]:
            raise ReleaseError(f"hetcal reproduce example must print rows, got {result}")
        call("pip", "check")


# -- commands -------------------------------------------------------------------------------------


def run(
    command: list[str],
    cwd: Path,
    variables: Mapping[str, str] | None = None,
    *,
    umask: int = -1,
    expected_exit: int = 0,
) -> str:
    """Run a command and return its output, or its errors if it is expected to fail."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    environment = {**inherited, **(variables or {})}
    process = subprocess.run(
        command, cwd=cwd, umask=umask, env=environment, capture_output=True, text=True, check=False
    )
    if process.returncode != expected_exit:
        output = (process.stdout + process.stderr)[-5000:]
        raise ReleaseError(
            f"{shlex.join(command)} must exit with {expected_exit}, got {process.returncode}:\n{output}"
        )
    return (process.stderr if expected_exit else process.stdout).strip()


@contextmanager
def step(name: str) -> Iterator[None]:
    """Print what is done and how long it took."""
    print(f"{name} ... ", end="", flush=True)
    start = time.perf_counter()
    yield
    print(f"{time.perf_counter() - start:.0f} s", flush=True)


def release(root: Path = ROOT) -> None:
    """Make the files of the release."""
    dist = root / "dist"
    for old in [*dist.glob("hetcal*.whl"), *dist.glob("hetcal*.tar.gz")]:
        old.unlink()
    shutil.rmtree(dist / "conda", ignore_errors=True)
    version = check_versions(root)
    check_tree(root)
    packages = read_packages(version, root)
    with tempfile.TemporaryDirectory(prefix="hetcal-release-") as name:
        work = Path(name).resolve()
        with step("build both packages twice, compare the bytes"):
            built = build(work, root)
        files = sorted(built.iterdir())
        with step("check the metadata with twine"):
            run([sys.executable, "-m", "twine", "check", "--strict", *map(str, files)], cwd=work)
        with step("write the conda recipes, check them with rattler-build"):
            for package in packages.values():
                sdist = built / f"{package.file_name}-{version}.tar.gz"
                sha256 = hashlib.sha256(sdist.read_bytes()).hexdigest()
                path = work / "conda" / package.name / "recipe.yaml"
                write_recipe(path, recipe(package, sha256, packages))
        try_out(built, version, work, root)
        dist.mkdir(exist_ok=True)
        for file in files:
            shutil.copy(file, dist)
        shutil.copytree(work / "conda", dist / "conda")
    for path in sorted([*dist.glob("hetcal*.*"), *dist.glob("conda/*/*")]):
        print(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(root)}")
    newest = (root / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")[1]
    if "(unreleased)" in newest.splitlines()[0]:
        print("CHANGELOG.md says (unreleased): before you upload, write the date, commit, and run this again")


def main() -> int:
    """Make the release; the exit code is 1 if it fails."""
    try:
        release()
    except ReleaseError as error:
        print(f"\nrelease: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
