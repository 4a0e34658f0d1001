"""Warnings can be silenced or collected, independently in each thread."""

from __future__ import annotations

import ast
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import hetcal
from hetcal import AutoCalibrator, CalibrationWarning, ClassWiseTemperatureScaling, TemperatureScaling
from hetcal import _warnings as messages
from hetcal._numeric.threads import in_order
from hetcal._warnings import collect_warnings, emit, quiet

SOURCES = Path(hetcal.__file__).parent


def test_no_module_uses_catch_warnings():
    """catch_warnings restores filters that all threads share, so concurrent calls would interfere."""
    for path in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = {getattr(node, name, None) for name in ("id", "attr", "name")}
            assert "catch_warnings" not in names, f"{path}:{node.lineno}"


def test_all_warnings_are_emitted_in_one_place():
    for path in sorted(SOURCES.rglob("*.py")):
        if path != Path(messages.__file__):
            assert "warnings.warn" not in path.read_text(encoding="utf-8"), path


def test_concurrent_fits_do_not_change_the_filters(make_sample):
    z, y, _ = make_sample(60, 3, 0)

    def fit(i):
        model = AutoCalibrator(cv=2) if i % 2 else ClassWiseTemperatureScaling(gamma="bayes")
        return model.fit(z, y)

    interval = sys.getswitchinterval()
    before = list(warnings.filters)
    try:
        sys.setswitchinterval(1e-6)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(fit, range(12)))
        after = list(warnings.filters)
    finally:
        sys.setswitchinterval(interval)
        warnings.filters[:] = before
        warnings._filters_mutated()  # a failure here must not affect other tests
    assert after == before
    with pytest.warns(CalibrationWarning, match="labels should"):
        TemperatureScaling().fit(np.eye(3)[[0, 0, 1]] * 2, np.zeros(3, int))


def test_warnings_name_the_line_that_called_hetcal():
    with pytest.warns(CalibrationWarning, match="labels should") as caught:
        TemperatureScaling().fit(np.eye(3)[[0, 0, 1]] * 2, np.zeros(3, int))
    assert caught[0].filename == __file__


def test_quiet_silences_the_categories_that_it_is_given():
    with quiet():
        emit("silent")
        with pytest.warns(RuntimeWarning, match="loud"):
            emit("loud", RuntimeWarning)
    with quiet(RuntimeWarning):
        emit("silent", RuntimeWarning)
        with pytest.warns(CalibrationWarning, match="loud"):
            emit("loud")
    with pytest.warns(CalibrationWarning, match="loud again"):
        emit("loud again")


def test_the_innermost_context_decides():
    with collect_warnings() as outer:
        emit("first")
        with quiet():
            emit("silent")
            with collect_warnings() as inner:
                emit("second")
        with quiet(RuntimeWarning):
            emit("third")
    assert outer == ["first", "third"]
    assert inner == ["second"]


def test_an_error_ends_the_context():
    with pytest.raises(ZeroDivisionError), quiet():
        raise ZeroDivisionError
    with pytest.warns(CalibrationWarning, match="loud"):
        emit("loud")


def test_other_threads_are_not_silenced():
    def warn():
        with pytest.raises(CalibrationWarning, match="loud"):
            emit("loud")

    with quiet(), ThreadPoolExecutor(1) as pool:
        pool.submit(warn).result()


def test_contexts_apply_to_worker_threads_of_the_call(monkeypatch):
    monkeypatch.setenv("HETCAL_THREADS", "2")
    with collect_warnings() as texts:
        in_order(emit, [("one",), ("two",)])
    assert sorted(texts) == ["one", "two"]
