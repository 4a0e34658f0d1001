"""Every calibrator gives the same probabilities in NumPy, from JSON, in PyTorch and in ONNX Runtime."""

from __future__ import annotations

import json

import numpy as np
import pytest
from route_checks import (
    check_exported_torch,
    check_invariances,
    check_json,
    check_onnx,
    check_torch,
    examples,
    fit,
    fit_probs,
    is_exportable,
    run_onnx,
)

import hetcal
from hetcal._numeric.probabilities import softmax
from hetcal.artefact import uses_groups
from hetcal.calibrators.base import Calibrator
from hetcal.export.maps import exported_map

pytest.importorskip("torch")
pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")

import hetcal.onnx  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::hetcal.CalibrationWarning")

EXAMPLES = examples()
every_example = pytest.mark.parametrize("name", EXAMPLES)
# Bundles of classes exclude groups.
CAN_GROUP = [name for name, example in EXAMPLES.items() if getattr(example, "bundles", None) is None]


@pytest.fixture(scope="module")
def rows(make_sample):
    z, y, _ = make_sample(1600, 5, 0, dtype=np.float32)
    return z[:800], y[:800], z[800:]


@pytest.fixture(scope="module")
def votes():
    """Probabilities of few distinct values, with exact zeros and ones, and labels."""
    rng = np.random.default_rng(0)
    share = rng.multinomial(20, rng.dirichlet(np.full(5, 0.3), size=1200)) / 20
    p, y = share.astype(np.float32), np.array([rng.choice(5, p=0.8 * row + 0.04) for row in share])
    assert (p == 0).any()
    assert (p == 1).any()
    return p[:700], y[:700], p[700:]


@every_example
def test_logits(name, rows, tmp_path):
    fitted = fit(EXAMPLES[name], *rows)
    check_json(fitted, tmp_path)
    if is_exportable(fitted.calibrator):
        check_torch(fitted)
        check_onnx(fitted)


@pytest.mark.parametrize("name", CAN_GROUP)
def test_groups(name, rows, tmp_path):
    z, y, test = rows
    fitted = fit(EXAMPLES[name], z, y, test, grouped=True)
    check_json(fitted, tmp_path)
    if is_exportable(fitted.calibrator) and uses_groups(fitted.calibrator):
        check_torch(fitted)
        check_onnx(fitted)


@every_example
def test_probabilities_with_zeros_and_ones(name, votes, tmp_path):
    fitted = fit_probs(EXAMPLES[name], *votes)
    check_json(fitted, tmp_path)
    if is_exportable(fitted.calibrator):
        check_torch(fitted)
        check_onnx(fitted)


@pytest.mark.parametrize(("fit_shift", "shift"), [(0, 10_000), (-10_000, -10_000)])
@every_example
def test_rows_far_from_zero(name, fit_shift, shift, rows):
    z, y, test = rows
    fitted = fit(EXAMPLES[name], z + np.float32(fit_shift), y, test + np.float32(shift))
    if is_exportable(fitted.calibrator):
        check_torch(fitted)
        check_onnx(fitted)


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name.endswith("-0")])
def test_exported_torch_programs(name, rows):
    z, y, test = rows
    check_exported_torch(fit(EXAMPLES[name], z, y, test + np.float32(10_000)))


def test_exported_torch_programs_with_groups(rows):
    check_exported_torch(fit(hetcal.ClassWiseTemperatureScaling(0.5), *rows, grouped=True))


@every_example
def test_invariances(name, make_sample):
    z, y, _ = make_sample(400, 4, 3)
    check_invariances(EXAMPLES[name], z, y)


@pytest.mark.parametrize("grouped", [False, True])
def test_onnx_after_a_model(rows, grouped, tmp_path):
    fitted = fit(hetcal.ClassWise(hetcal.PlattScaling(), 1.0), *rows, grouped=grouped)
    k = fitted.test.shape[1]
    mix = np.roll(np.eye(k, dtype=np.float32), 1, axis=0)
    helper = onnx.helper
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "mix"], ["scores"])],
        "net",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["rows", k])],
        [helper.make_tensor_value_info("scores", onnx.TensorProto.FLOAT, ["rows", k])],
        [onnx.numpy_helper.from_array(mix.T.copy(), "mix")],
    )
    net = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(net, tmp_path / "net.onnx")
    expected = fitted.calibrator.predict_proba(fitted.test @ mix.T, groups=fitted.groups)
    hetcal.onnx.export(fitted.calibrator, tmp_path / "both.onnx", model=tmp_path / "net.onnx")
    outputs = run_onnx(onnx.load(tmp_path / "both.onnx"), fitted)
    np.testing.assert_allclose(outputs["probabilities"], expected, atol=1e-5)


def test_class_names_are_saved_with_the_calibrator(votes, tmp_path):
    import torch

    test = votes[2]
    fitted = fit_probs(hetcal.ClassWiseTemperatureScaling(), *votes)
    model = hetcal.torch.Calibration(fitted.calibrator)
    assert model.class_names == tuple("edcba")
    metadata = {e.key: e.value for e in hetcal.onnx.to_model(fitted.calibrator).metadata_props}
    assert json.loads(metadata["class_names"]) == list("edcba")
    hetcal.save(fitted.calibrator, tmp_path / "c.json")
    loaded = hetcal.load(tmp_path / "c.json")
    order = [3, 1, 4, 0, 2]
    mixed = loaded.predict_proba(probs=test[:, order], class_names=[list("edcba")[k] for k in order])
    np.testing.assert_array_equal(mixed, fitted.expected[:, order])
    from_tensor = loaded.predict_proba(probs=torch.from_numpy(test))
    fitted.agrees(from_tensor.numpy())


@pytest.mark.parametrize("name", ["AutoCalibrator-0", "ClassWiseTemperatureScaling-0", "VectorScaling-0"])
def test_many_classes(name):
    """Logits of the embedded example with 100 classes."""
    data = hetcal.load_example("cifar100-noisy")
    z, test = (part.logits.astype(np.float32) for part in (data.val, data.judged))
    fitted = fit(EXAMPLES[name], z, data.val.labels, test[:4000])
    check_torch(fitted)
    check_onnx(fitted)


class Damped(hetcal.TemperatureScaling):
    """Overrides the predictions but not the exported map."""

    def _predict(self, z, groups):
        return 0.9 * super()._predict(z, groups) + 0.1 / z.shape[1]


class Rounded(hetcal.TemperatureScaling):
    """Overrides the public method."""

    def predict_proba(self, *arguments, **options):
        return super().predict_proba(*arguments, **options).round(1)


@pytest.mark.parametrize("cls", [Damped, Rounded])
def test_overridden_predictions_cannot_be_exported(cls):
    z, y = np.eye(3)[np.arange(30) % 3] * 2, np.arange(30) // 7 % 3
    with pytest.raises(TypeError, match="_map"):
        exported_map(cls().fit(z, y))
    with pytest.raises(TypeError, match="_map"):
        exported_map(hetcal.Mixture([cls(), hetcal.Identity()]).fit(z, y))


def test_groups_reach_a_calibrator_without_a_map_in_batches():
    class ByGroup(Calibrator):
        def _fit(self, source):
            self.groups_ = np.unique(source.groups)
            self.alpha_ = np.arange(1.0, len(self.groups_) + 1)

        def _predict(self, z, groups):
            return softmax(self.alpha_[np.searchsorted(self.groups_, groups)][:, None] * z)

    rng = np.random.default_rng(0)
    z, y, groups = rng.normal(size=(60, 3)), rng.integers(3, size=60), rng.integers(2, size=60)
    model = ByGroup().fit(z, y, groups=groups)
    assert not model.preserves_decision
    batches = hetcal.Batches(z, y, groups=groups, batch_rows=20)
    probs = np.concatenate([p for p, *_ in model.predict_proba(batches)])
    np.testing.assert_allclose(probs, model.predict_proba(z, groups=groups))


def test_mixtures_that_share_a_first_step_equal_the_mean_of_their_members():
    rng = np.random.default_rng(1)
    z = rng.normal(size=(200, 4)) * 3
    y = np.where(rng.random(200) < 0.7, z.argmax(axis=1), rng.integers(4, size=200))
    first = hetcal.VectorScaling(0.01)
    members = [first, hetcal.Chain([first, hetcal.PlattScaling()]), hetcal.VectorScaling(0.1)]
    model = hetcal.Mixture(members, [1, 2, 3]).fit(z, y)
    mean = sum(w * m.predict_proba(z) for w, m in zip(model.weights_, model.calibrators_, strict=True))
    np.testing.assert_allclose(model.predict_proba(z), mean, atol=1e-12)
