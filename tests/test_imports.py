"""What `import hetcal` loads, seen from a fresh process."""

from __future__ import annotations

import subprocess
import sys

import pytest

import hetcal

# scikit-learn itself imports pandas where it is installed, so pandas is not ours to keep out.
HEAVY = ("torch", "numba", "matplotlib", "dask", "onnx", "altair", "typer", "rich", "jinja2")


def loaded_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; sys.stdout.write(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in done.stdout.split()}


def test_import_loads_nothing_heavy() -> None:
    names = ("ClassWise", "evaluate", "diagnose", "load", "partition")
    everything = f"import hetcal; [getattr(hetcal, name) for name in {names}]"
    assert not loaded_by(everything) & set(HEAVY)


def test_every_public_name_can_be_had() -> None:
    pytest.importorskip("torch")  # one of the names is an adapter to it
    for name in hetcal.__all__:
        assert getattr(hetcal, name) is not None
    assert set(hetcal.__all__) <= set(dir(hetcal))


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(hetcal, "nothing_of_the_kind")
