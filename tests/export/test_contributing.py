"""The example calibrator in CONTRIBUTING.md works on every route without further code."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest
from route_checks import (
    check_exported_torch,
    check_invariances,
    check_json,
    check_onnx,
    check_torch,
    fit,
    fit_probs,
)
from sklearn.base import clone

import hetcal
from hetcal.calibrators.base import REGISTRY

pytest.importorskip("torch")
pytest.importorskip("onnxruntime")

PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """The class, imported from a module of its own."""
    source = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[1]
    assert source.count("\n") <= 40
    path = tmp_path_factory.mktemp("user") / "bias_scaling.py"
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("bias_scaling", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module.BiasScaling()
    del REGISTRY["bias_scaling.BiasScaling"]


@pytest.fixture(scope="module")
def rows(make_sample):
    z, y, _ = make_sample(1200, 5, 0, dtype=np.float32)
    return z[:700], y[:700], z[700:]


def test_it_recovers_a_known_truth(example):
    rng = np.random.default_rng(0)
    z, bias = rng.normal(size=(50_000, 3)) * 3, np.array([0.5, -0.25, -0.25])
    y = (0.6 * z + bias + rng.gumbel(size=z.shape)).argmax(axis=1)
    fitted = clone(example).set_params(ridge=0.0).fit(z, y)
    assert fitted.alpha_ == pytest.approx(0.6, abs=0.02)
    np.testing.assert_allclose(fitted.bias_ - fitted.bias_.mean(), bias, atol=0.05)


def test_without_a_bias_it_is_temperature_scaling(example, rows):
    z, y, test = rows
    shrunk = clone(example).set_params(ridge=1e6).fit(z, y).predict_proba(test)
    np.testing.assert_allclose(shrunk, hetcal.TemperatureScaling().fit(z, y).predict_proba(test), atol=1e-4)


def test_every_route(example, rows, tmp_path):
    fitted = fit(example, *rows)
    check_json(fitted, tmp_path)
    check_torch(fitted)
    check_exported_torch(fitted)
    check_onnx(fitted)


def test_probabilities(example, rows, tmp_path):
    z, y, test = rows
    p, p_test = (hetcal.Identity().fit(z, y).predict_proba(part) for part in (z, test))
    fitted = fit_probs(example, p, y, p_test)
    check_json(fitted, tmp_path)
    check_torch(fitted)
    check_onnx(fitted)


def test_invariances(example, make_sample):
    z, y, _ = make_sample(400, 4, 3)
    check_invariances(example, z, y)


def test_it_is_a_part_of_composites(example, rows, tmp_path):
    steps = [example, hetcal.ClassWise(hetcal.PlattScaling(), "bayes")]
    for composite in (hetcal.Chain(steps), hetcal.Mixture(steps)):
        fitted = fit(composite, *rows)
        check_json(fitted, tmp_path)
        check_torch(fitted)
        check_onnx(fitted)


def test_a_file_names_the_class_that_must_be_imported(example, rows, tmp_path, monkeypatch):
    z, y, _ = rows
    hetcal.save(clone(example).fit(z, y), tmp_path / "c.json")
    monkeypatch.delitem(REGISTRY, "bias_scaling.BiasScaling")
    with pytest.raises(ValueError, match=r"BiasScaling.*import the module"):
        hetcal.load(tmp_path / "c.json")
