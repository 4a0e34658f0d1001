"""What the commands import, checked in new processes."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest


def run_code(code: str) -> str:
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return process.stdout


def test_the_command_line_starts_without_packages_that_compute() -> None:
    code = "import sys, hetcal.cli; print(*sys.modules)"
    loaded = set(run_code(code).split())
    assert not {"numpy", "scipy", "sklearn", "pandas", "matplotlib"} & loaded


def test_a_fit_needs_neither_pandas_nor_scipy_stats(sample: Any, tmp_path: Any) -> None:
    code = f"""
import sys
from hetcal.__main__ import main
assert main(["fit", {str(sample.path)!r}, "-o", {str(tmp_path / "cal.json")!r}, "--json"]) == 0
print(*sys.modules)
"""
    loaded = set(run_code(code).splitlines()[-1].split())
    assert "sklearn" in loaded
    assert not {"pandas", "scipy.stats"} & loaded


def test_postponed_packages_can_be_imported_and_used() -> None:
    pytest.importorskip("pandas")
    code = """
import sys
from hetcal.cli.startup import import_scikit_learn
import_scikit_learn()
from sklearn.utils import fixes
assert "pandas" not in sys.modules
print(fixes.scipy.stats.norm.cdf(0.0), fixes.pd.DataFrame({"a": [1]}).shape)
import pandas, scipy.stats
from sklearn.isotonic import IsotonicRegression
print(pandas.DataFrame is fixes.pd.DataFrame, scipy.stats is sys.modules["scipy.stats"])
"""
    assert run_code(code).split() == ["0.5", "(1,", "1)", "True", "True"]


def test_packages_that_are_already_imported_stay() -> None:
    code = """
import sys, scipy.stats
before = sys.modules["scipy.stats"]
from hetcal.cli.startup import import_scikit_learn
import_scikit_learn()
print(sys.modules["scipy.stats"] is before)
"""
    assert run_code(code).strip() == "True"
