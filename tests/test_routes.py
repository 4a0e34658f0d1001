"""One calibrator, many routes (numpy, torch, exported torch, ONNX Runtime, JSON): the same numbers."""

from __future__ import annotations

import json

import numpy as np
import pytest

import hetcal
from hetcal import examples

torch = pytest.importorskip("torch")
ort = pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")

import hetcal.onnx  # noqa: E402
import hetcal.torch  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::hetcal.CalibrationWarning")

CALIBRATORS = {
    "Identity": lambda: hetcal.Identity(),
    "TS": lambda: hetcal.TemperatureScaling(),
    "CTS": lambda: hetcal.ClassWiseTemperatureScaling(),
    "CTS cv": lambda: hetcal.ClassWiseTemperatureScaling("cv"),
    "CTS bundles": lambda: hetcal.ClassWiseTemperatureScaling(bundles=3),
    "CTS groups": lambda: hetcal.ClassWiseTemperatureScaling(0.5),
    "VS": lambda: hetcal.VectorScaling(ridge=1e-3),
    "VS kept": lambda: hetcal.VectorScaling(ridge=1e-3, keep_decision=True),
    "VS centred": lambda: hetcal.VectorScaling(ridge=1e-3, center=True),
    "VS centred kept": lambda: hetcal.VectorScaling(ridge=1e-3, center=True, keep_decision=True),
    "Platt": lambda: hetcal.PlattScaling(),
    "Platt pooled": lambda: hetcal.PlattScaling(pool=True),
    "ClassWise Platt bayes": lambda: hetcal.ClassWise(hetcal.PlattScaling(pool=True), "bayes"),
    "Chain": lambda: hetcal.Chain(
        [
            hetcal.VectorScaling(ridge=1e-3, keep_decision=True),
            hetcal.ClassWise(hetcal.PlattScaling(), "bayes"),
        ]
    ),
    "Chain that changes": lambda: hetcal.Chain([hetcal.VectorScaling(1e-3), hetcal.PlattScaling(pool=True)]),
    "Mixture": lambda: hetcal.Mixture([hetcal.TemperatureScaling(), hetcal.PlattScaling()], [3, 1]),
    "Mixture groups": lambda: hetcal.Mixture(
        [hetcal.VectorScaling(ridge=1e-3, keep_decision=True), hetcal.ClassWiseTemperatureScaling("bayes")]
    ),
    "ClassWise TS": lambda: hetcal.ClassWise(hetcal.TemperatureScaling(), 0.3),
    "ClassWise Platt": lambda: hetcal.ClassWise(hetcal.PlattScaling(), 1.0),
    "ClassWise Platt bundles": lambda: hetcal.ClassWise(hetcal.PlattScaling(), 1.0, bundles=2),
    "ClassWise Platt groups": lambda: hetcal.ClassWise(hetcal.PlattScaling(), 1.0),
    "ClassWise VS bundles": lambda: hetcal.ClassWise(hetcal.VectorScaling(0.1), bundles=2),
    "Auto": lambda: hetcal.AutoCalibrator(cv=2),
    "Isotonic": lambda: hetcal.TopLabelIsotonic(),
    "Histogram": lambda: hetcal.TopLabelHistogram(),
}
# Maps with steep corners or steps turn the last bit of a confidence into more.
LOOSE = {"Isotonic": 1e-2, "Histogram": 2e-2}


def rows(name):
    data = examples.load_example(name)
    test = data.judged.logits.astype(np.float32)
    test = np.concatenate([test, data.val.logits.astype(np.float32)])[:10_000]
    return data.val.logits.astype(np.float32), data.val.labels, test


@pytest.fixture(scope="module", params=examples.names())
def example(request):
    return rows(request.param)


@pytest.fixture
def routed(example, request):
    """A fitted calibrator with the rows to judge, their groups and numpy's probabilities."""
    name = request.param
    z, y, test = example
    grouped = name.endswith("groups")
    kinds = np.array(["north", "south", "west"])
    g, gt = (np.resize(kinds, len(a)) if grouped else None for a in (z, test))
    cal = CALIBRATORS[name]().fit(z, y, groups=g)
    codes = None if gt is None else np.searchsorted(kinds, gt)
    return name, cal, test, codes, cal.predict_proba(test, groups=gt)


every = pytest.mark.parametrize("routed", CALIBRATORS, indirect=True)


def agree(name, cal, found, expected):
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=LOOSE.get(name, 1e-5))
    if cal.preserves_decision:
        np.testing.assert_array_equal(found.argmax(1), expected.argmax(1))


@every
def test_torch(routed):
    name, cal, test, codes, expected = routed
    model = hetcal.torch.CalibratedModel(torch.nn.Identity(), cal)
    groups = None if codes is None else torch.from_numpy(codes)
    agree(name, cal, model.predict_proba(torch.from_numpy(test), groups=groups).numpy(), expected)
    log_p = model(torch.from_numpy(test), groups=groups)
    agree(name, cal, hetcal.torch.probabilities(log_p).numpy(), expected)


def run_exported(cal, test, codes):
    model = hetcal.torch.CalibratedModel(torch.nn.Identity(), cal)
    n = torch.export.Dim("n", min=2)
    inputs, named = (torch.from_numpy(test),), {} if codes is None else {"groups": torch.from_numpy(codes)}
    shapes = {"inputs": ({0: n},), **({} if codes is None else {"groups": {0: n}})}
    program = torch.export.export(model, inputs, named, dynamic_shapes=shapes)
    return hetcal.torch.probabilities(program.module()(*inputs, **named)).numpy()


@pytest.mark.parametrize("routed", ["CTS cv", "VS", "ClassWise Platt", "CTS groups"], indirect=True)
def test_exported_torch(routed):
    name, cal, test, codes, expected = routed
    agree(name, cal, run_exported(cal, test, codes), expected)


def run(model, test, codes):
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = {i.name for i in session.get_inputs()}
    feed = {(names - {"groups"}).pop(): test} | ({} if codes is None else {"groups": codes})
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, feed), strict=True))


@every
def test_onnx_alone(routed):
    name, cal, test, codes, expected = routed
    found = run(hetcal.onnx.to_model(cal), test, codes)
    agree(name, cal, found["probabilities"], expected)
    np.testing.assert_array_equal(found["label"], expected.argmax(1))


@pytest.mark.parametrize("fitted_on", ["shifted", "plain"])
@pytest.mark.parametrize("shift", [10_000, -10_000])
@pytest.mark.parametrize("name", CALIBRATORS)
def test_rows_far_from_zero(name, shift, fitted_on):
    z, y, test = rows(examples.names()[0])
    z, test = z + np.float32(shift if fitted_on == "shifted" else 0), test[:2000] + np.float32(shift)
    g, gt = (np.arange(len(a)) % 3 if name.endswith("groups") else None for a in (z, test))
    cal = CALIBRATORS[name]().fit(z, y, groups=g)
    expected = cal.predict_proba(test, groups=gt)
    model = hetcal.torch.CalibratedModel(torch.nn.Identity(), cal)
    groups = None if gt is None else torch.from_numpy(gt)
    agree(name, cal, model.predict_proba(torch.from_numpy(test), groups=groups).numpy(), expected)
    agree(name, cal, run_exported(cal, test, gt), expected)
    agree(name, cal, run(hetcal.onnx.to_model(cal), test, gt)["probabilities"], expected)


@pytest.mark.parametrize("routed", ["CTS", "VS", "ClassWise Platt groups", "Auto"], indirect=True)
def test_onnx_behind_a_model(routed, tmp_path):
    name, cal, test, codes, expected = routed
    k = test.shape[1]
    mix = np.roll(np.eye(k, dtype=np.float32), 1, axis=0)
    helper = onnx.helper
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "mix"], ["scores"])],
        "net",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["rows", k])],
        [helper.make_tensor_value_info("scores", onnx.TensorProto.FLOAT, ["rows", k])],
        [onnx.numpy_helper.from_array(mix, "mix")],
    )
    net = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(net, tmp_path / "net.onnx")
    hetcal.onnx.export(cal, tmp_path / "both.onnx", model=tmp_path / "net.onnx")
    found = run(onnx.load(tmp_path / "both.onnx"), test @ mix.T, codes)
    agree(name, cal, found["probabilities"], expected)


@every
def test_json(routed, tmp_path):
    _, cal, test, codes, expected = routed
    hetcal.save(cal, tmp_path / "c.json")
    again = hetcal.load(tmp_path / "c.json")
    kinds = np.array(["north", "south", "west"])
    np.testing.assert_array_equal(
        again.predict_proba(test, groups=None if codes is None else kinds[codes]), expected
    )


@pytest.fixture(scope="module")
def votes():
    """Probabilities of few levels, with exact zeros and ones, and labels."""
    rng = np.random.default_rng(0)
    share = rng.multinomial(20, rng.dirichlet(np.full(5, 0.3), size=2500)) / 20
    p, y = share.astype(np.float32), np.array([rng.choice(5, p=0.8 * row + 0.04) for row in share])
    assert (p == 0).any()
    assert (p == 1).any()
    return p[:1500], y[:1500], p[1500:]


@pytest.mark.parametrize("name", [name for name in CALIBRATORS if not name.endswith("groups")])
def test_probabilities_with_zeros_and_ones(name, votes, tmp_path):
    p, y, test = votes
    cal = CALIBRATORS[name]().fit(probs=p, labels=y, class_names=list("edcba"))
    expected = cal.predict_proba(probs=test)
    model = hetcal.torch.CalibratedModel(torch.nn.Identity(), cal, from_probs=True)
    agree(name, cal, model.predict_proba(torch.from_numpy(test)).numpy(), expected)
    assert model.calibration.class_names == tuple("edcba")
    graph = hetcal.onnx.to_model(cal, from_probs=True)
    agree(name, cal, run(graph, test, None)["probabilities"], expected)
    facts = {entry.key: entry.value for entry in graph.metadata_props}
    assert json.loads(facts["class_names"]) == list("edcba")
    hetcal.onnx.export(cal, tmp_path / "alone.onnx", from_probs=True)
    agree(name, cal, run(onnx.load(tmp_path / "alone.onnx"), test, None)["probabilities"], expected)
    hetcal.save(cal, tmp_path / "c.json")
    again = hetcal.load(tmp_path / "c.json")
    np.testing.assert_array_equal(again.predict_proba(probs=test), expected)
    agree(name, cal, again.predict_proba(probs=torch.from_numpy(test)).numpy(), expected)
    order = [3, 1, 4, 0, 2]
    mixed = again.predict_proba(probs=test[:, order], class_names=[list("edcba")[k] for k in order])
    np.testing.assert_array_equal(mixed, expected[:, order])
