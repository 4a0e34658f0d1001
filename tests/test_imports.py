"""What `import hetcal` loads, checked in a new process."""

from __future__ import annotations

import subprocess
import sys

import pytest

import hetcal

# pandas is missing from this list because scikit-learn imports it if it is installed.
HEAVY = {
    "altair", "dask", "datasets", "evaluate", "jinja2", "lightning", "matplotlib", "mlflow", "numba", "onnx",
    "pytorch_lightning", "rich", "torch", "torchmetrics", "typer",
}  # fmt: skip


def test_core_names_do_not_import_heavy_packages() -> None:
    names = ("ClassWise", "evaluate", "diagnose", "load", "partition", "plan_validation_size", "theory")
    code = f"import sys, hetcal; [getattr(hetcal, n) for n in {names}]; print(*sys.modules)"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not HEAVY & {name.split(".")[0] for name in process.stdout.split()}


def test_every_public_name_resolves() -> None:
    for package in ("evaluate", "lightning", "mlflow", "torchmetrics"):  # some names are adapters
        pytest.importorskip(package)
    for name in hetcal.__all__:
        assert getattr(hetcal, name) is not None
    assert set(hetcal.__all__) <= set(dir(hetcal))


def test_unknown_names_raise_attribute_error() -> None:
    assert not hasattr(hetcal, "no_such_name")
