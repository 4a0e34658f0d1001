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


@pytest.mark.parametrize("command", ["diagnose", "evaluate", "fit", "plan", "report"])
def test_commands_need_neither_pandas_nor_scipy_stats(sample: Any, tmp_path: Any, command: str) -> None:
    output = ["-o", str(tmp_path / "cal.json")] if command == "fit" else []
    code = f"""
import sys
from hetcal.__main__ import main
assert main({[command, str(sample.path), *output, "--json"]!r}) == 0
print()
print(*sys.modules)
"""
    loaded = set(run_code(code).splitlines()[-1].split())
    assert "sklearn" in loaded
    assert not {"pandas", "scipy.stats"} & loaded


def test_postponed_packages_can_be_imported_and_used() -> None:
    pytest.importorskip("pandas")
    code = """
import sys
from hetcal.cli.startup import fast_imports
with fast_imports():
    pass
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
import gc, sys, scipy.stats
before = sys.modules["scipy.stats"]
from hetcal.cli.startup import fast_imports
with fast_imports():
    pass
print(sys.modules["scipy.stats"] is before, gc.isenabled())
"""
    assert run_code(code).split() == ["True", "True"]
