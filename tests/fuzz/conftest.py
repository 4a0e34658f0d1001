"""Number of examples: few with fixed seeds in `make test`, many with new seeds in `make fuzz`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))  # makes `strategies` importable

_COMMON = {"deadline": None, "suppress_health_check": list(HealthCheck), "print_blob": True}
settings.register_profile("hetcal-ci", max_examples=40, derandomize=True, database=None, **_COMMON)
settings.register_profile("hetcal-nightly", max_examples=400, **_COMMON)

_failed: dict[str, int] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" and "fuzz" in report.nodeid:
        name = report.nodeid.rpartition("::")[2]
        _failed[name] = _failed.get(name, 0) + int(report.failed)


def pytest_sessionfinish() -> None:
    """Write the number of examples and failures per test, for the summary of `make fuzz`."""
    if (path := os.environ.get("HETCAL_FUZZ_COUNTS")) is None:
        return
    from strategies import EXAMPLES

    table = {name: [EXAMPLES[name.partition("[")[0]], errors] for name, errors in _failed.items()}
    Path(path).write_text(json.dumps(table), encoding="utf-8")
