from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def benchmarks_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripts of the benchmarks import each other by name."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
