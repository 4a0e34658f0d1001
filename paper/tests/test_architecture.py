"""hetcal_paper uses the public API of hetcal only, and hetcal never imports hetcal_paper."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import hetcal
import hetcal_paper

MODULES = sorted(Path(hetcal_paper.__file__).parent.rglob("*.py"))


def imports(path: Path) -> list[tuple[str, str | None]]:
    """List (module, name) of all imports; the name is None if the whole module is imported."""
    names: list[tuple[str, str | None]] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [(alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [(node.module, alias.name) for alias in node.names]
    return names


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_only_public_names_of_hetcal_are_used(path: Path) -> None:
    for module, name in imports(path):
        package, _, rest = module.partition(".")
        if package != "hetcal":
            continue
        assert not rest or rest in hetcal.__all__, module
        public = hetcal if not rest else getattr(hetcal, rest)
        assert name is None or name in public.__all__, (module, name)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "hetcal":
            assert node.attr in hetcal.__all__, node.attr


def test_hetcal_does_not_import_the_paper() -> None:
    for path in Path(hetcal.__file__).parent.rglob("*.py"):
        assert not [module for module, _ in imports(path) if module.startswith("hetcal_paper")], path


def test_both_packages_have_the_same_version() -> None:
    assert hetcal_paper.__version__ == hetcal.__version__
