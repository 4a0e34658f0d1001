"""The ONNX models: files, names, types, errors, and inputs of the wrong kind."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
from sklearn.base import clone

import hetcal

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

import hetcal.onnx  # noqa: E402

helper = onnx.helper


@pytest.fixture
def fitted(make_sample):
    z, y, _ = make_sample(1000, 5, 0, dtype=np.float32)
    return hetcal.ClassWiseTemperatureScaling(0.5).fit(z, y), z, y


def session(path):
    return ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def net(*outputs, k=5, opset=18, kind=onnx.TensorProto.FLOAT, width=5):
    nodes = [helper.make_node("Identity", ["x"], [name]) for name in outputs]
    values = [helper.make_tensor_value_info(name, kind, ["n", width]) for name in outputs]
    graph = helper.make_graph(nodes, "net", [helper.make_tensor_value_info("x", kind, ["n", k])], values)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def test_metadata_describe_the_calibrator(fitted, tmp_path):
    cal, _, _ = fitted
    hetcal.onnx.export(cal, tmp_path / "c.onnx")
    model = onnx.load(tmp_path / "c.onnx")
    metadata = {p.key: p.value for p in model.metadata_props}
    assert metadata["hetcal"] == hetcal.__version__
    assert metadata["calibrator"] == "ClassWiseTemperatureScaling"
    assert [o.version for o in model.opset_import] == [hetcal.onnx.OPSET]
    assert [o.name for o in model.graph.output] == ["probabilities", "label"]


def test_metadata_list_the_groups(fitted, tmp_path):
    _, z, y = fitted
    cal = hetcal.ClassWiseTemperatureScaling().fit(z, y, groups=np.resize(["a", "b"], 1000))
    hetcal.onnx.export(cal, tmp_path / "c.onnx")
    metadata = {p.key: p.value for p in onnx.load(tmp_path / "c.onnx").metadata_props}
    assert json.loads(metadata["groups"]) == ["a", "b"]
    hetcal.onnx.export(cal, tmp_path / "d.onnx", model=net("scores"))
    metadata = {p.key: p.value for p in onnx.load(tmp_path / "d.onnx").metadata_props}
    assert json.loads(metadata["groups"]) == ["a", "b"]


def test_the_label_of_probabilities_with_equal_logarithms(tmp_path):
    """In float32, neighbouring probabilities can have the same logarithm."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(500, 10))
    calibrator = hetcal.TemperatureScaling().fit(z, rng.integers(0, 10, 500))
    largest = np.linspace(0.12, 0.3, 2000, dtype=np.float32)
    p = np.repeat(((1 - 2 * largest) / 8)[:, None], 10, axis=1)
    p[:, 2], p[:, 3] = largest, np.nextafter(largest, np.float32(1))
    hetcal.onnx.export(calibrator, tmp_path / "c.onnx", from_probs=True)
    assert (session(tmp_path / "c.onnx").run(["label"], {"probs": p})[0] == 3).all()


@pytest.mark.parametrize("x", [[0.4, 0.7, 0.7], [0.7, 0.7, 0.7]])
def test_the_last_of_equal_knots_counts(tmp_path, x):
    z = np.array([[0.3, 0.0], [1.0, 0.0], [3.0, 0.0]])
    calibrator = hetcal.calibrators.TopLabelIsotonic().fit(z, [0, 0, 1])
    calibrator.x_, calibrator.y_ = np.array(x), np.array([0.5, 0.6, 0.9])
    hetcal.onnx.export(calibrator, tmp_path / "c.onnx", dtype="float64")
    p = session(tmp_path / "c.onnx").run(["probabilities"], {"logits": z})[0]
    np.testing.assert_allclose(p, calibrator.predict_proba(z), atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "calibrator",
    [hetcal.VectorScaling(keep_decision=True), hetcal.TopLabelIsotonic(), hetcal.PlattScaling()],
    ids=str,
)
def test_the_predicted_class_is_the_argmax_despite_ties(calibrator, dtype, tmp_path):
    rng = np.random.default_rng(0)
    z = rng.integers(0, 3, size=(400, 4)).astype(dtype)
    model = clone(calibrator).fit(z, rng.integers(0, 4, 400))
    hetcal.onnx.export(model, tmp_path / "c.onnx", dtype=dtype)
    p, label = session(tmp_path / "c.onnx").run(["probabilities", "label"], {"logits": z})
    np.testing.assert_array_equal(p.argmax(axis=1), label)


def test_float64(fitted, tmp_path):
    cal, z, _ = fitted
    hetcal.onnx.export(cal, tmp_path / "c.onnx", dtype="float64")
    z = z.astype(np.float64)
    np.testing.assert_allclose(
        session(tmp_path / "c.onnx").run(None, {"logits": z})[0], cal.predict_proba(z), atol=1e-12
    )


@pytest.mark.parametrize("opset", [13, 17, 18, 20, 21])
def test_calibration_of_models_with_other_opsets(fitted, tmp_path, opset):
    cal, z, _ = fitted
    hetcal.onnx.export(cal, tmp_path / "c.onnx", model=net("scores", opset=opset))
    probs = session(tmp_path / "c.onnx").run(["probabilities"], {"x": z})[0]
    np.testing.assert_allclose(probs, cal.predict_proba(z), atol=1e-6)


def test_other_outputs_are_kept_and_names_do_not_clash(fitted, tmp_path):
    cal, z, _ = fitted
    hetcal.onnx.export(cal, tmp_path / "c.onnx", model=net("label", "probabilities"), output="label")
    model = session(tmp_path / "c.onnx")
    names = [o.name for o in model.get_outputs()]
    assert names == ["calibrated_probabilities", "calibrated_label", "probabilities"]
    outputs = dict(zip(names, model.run(None, {"x": z}), strict=True))
    np.testing.assert_allclose(outputs["calibrated_probabilities"], cal.predict_proba(z), atol=1e-6)
    np.testing.assert_array_equal(outputs["probabilities"], z)


def test_models_that_return_probabilities(fitted, tmp_path):
    _, z, y = fitted
    p = hetcal.Identity().fit(z, y).predict_proba(z)
    cal = hetcal.ClassWiseTemperatureScaling(0.5).fit(hetcal.to_logits(p), y)
    hetcal.onnx.export(cal, tmp_path / "c.onnx", model=net("p"), from_probs=True)
    probs = session(tmp_path / "c.onnx").run(["probabilities"], {"x": p})[0]
    np.testing.assert_allclose(probs, cal.predict_proba(hetcal.to_logits(p)), atol=1e-6)
    p[0] = [0, 0, 1, 0, 0]
    assert np.isfinite(session(tmp_path / "c.onnx").run(["probabilities"], {"x": p})[0]).all()


BAD = {
    "unknown output": (
        {"model": net("scores"), "output": "logits"},
        "output must .*scores",
    ),
    "two possible outputs": ({"model": net("a", "b")}, "output must .*a, b"),
    "no possible output": ({"model": net("a", width=7)}, "output must"),
    "integer output": (
        {"model": net("a", kind=onnx.TensorProto.INT64), "output": "a"},
        "output must .*got INT64 for 'a'",
    ),
    "unknown dtype": ({"dtype": "float16"}, "dtype must .*got 'float16'"),
    "output without a model": (
        {"output": "a"},
        "output must .*got 'a'",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments(fitted, tmp_path, case):
    options, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        hetcal.onnx.export(fitted[0], tmp_path / "c.onnx", **options)
    assert not list(tmp_path.iterdir())


def test_bad_files(fitted, tmp_path):
    cal, _, _ = fitted
    with pytest.raises(FileNotFoundError, match=r"model must .*exist"):
        hetcal.onnx.export(cal, tmp_path / "c.onnx", model=tmp_path / "none.onnx")
    (tmp_path / "text.onnx").write_text("no model")
    with pytest.raises(ValueError, match=r"model must .*got 'text\.onnx'"):
        hetcal.onnx.export(cal, tmp_path / "c.onnx", model=tmp_path / "text.onnx")
    with pytest.raises(FileNotFoundError, match="folder"):
        hetcal.onnx.export(cal, tmp_path / "none" / "c.onnx")


def test_random_inputs_give_an_error_or_correct_probabilities(fitted, tmp_path):
    """Inputs of the wrong shape or type raise an error of ONNX Runtime; all others agree with NumPy."""
    cal, _, _ = fitted
    hetcal.onnx.export(cal, tmp_path / "c.onnx")
    model = session(tmp_path / "c.onnx")
    rng = np.random.default_rng(0)
    n_accepted = 0
    for _ in range(1000):
        shape = [(3, 5), (0, 5), (3, 4), (5,), (2, 5, 1)][rng.integers(5)]
        kind = [np.float32, np.float32, np.float32, np.float64, np.int64][rng.integers(5)]
        top = 30 if kind is np.float32 else 15
        value = (rng.normal(size=shape) * 10.0 ** rng.integers(-38, top)).astype(kind)
        if value.size and rng.random() < 0.3:
            value.flat[rng.integers(value.size)] = rng.choice([0, 1e15, -1e15])
        try:
            p, label = model.run(None, {"logits": value})
        except Exception as error:
            if "nvalid" not in str(error) and "INVALID" not in str(error):
                raise
            continue
        assert value.dtype == np.float32
        np.testing.assert_allclose(p.sum(axis=1), 1, atol=1e-5)
        np.testing.assert_array_equal(label, value.argmax(axis=1))
        np.testing.assert_allclose(p, cal.predict_proba(value), atol=1e-5) if len(value) else None
        n_accepted += 1
    assert n_accepted > 200


@pytest.mark.parametrize("k", [160, 400, 401, 1000])
def test_graphs_for_many_rows_agree_with_numpy(k, tmp_path, make_sample):
    """Ties go to the first class in both graphs. 401 is prime, so its graph has no blocks of classes."""
    z, y, _ = make_sample(3000, k, 0, dtype=np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hetcal.CalibrationWarning)
        cal = hetcal.ClassWiseTemperatureScaling(0.3).fit(z, y)
    z[:50] = 0
    z[50:100, k // 3] = z[50:100, -1] = 99.0
    for many in (False, True):
        hetcal.onnx.export(cal, tmp_path / "c.onnx", many_rows=many)
        p, label = session(tmp_path / "c.onnx").run(None, {"logits": z})
        np.testing.assert_array_equal(label, z.argmax(axis=1))
        np.testing.assert_allclose(p, cal.predict_proba(z), atol=1e-5)
    kinds = {node.op_type for node in onnx.load(tmp_path / "c.onnx").graph.node}
    assert ("GatherND" in kinds) == (k != 401)


def test_an_invalid_graph_is_refused_and_leaves_no_file(tmp_path):
    out = helper.make_tensor_value_info("scores", onnx.TensorProto.FLOAT, ["n", 3])
    start = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 3])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["elsewhere"])], "net", [start], [out])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), tmp_path / "net.onnx")
    cal = hetcal.TemperatureScaling().fit(np.eye(3) * 2, [0, 1, 1])
    with pytest.raises(ValueError, match="model must"):
        hetcal.onnx.export(cal, tmp_path / "out.onnx", tmp_path / "net.onnx")
    assert not (tmp_path / "out.onnx").exists()


def test_names_that_are_not_utf8_are_refused(tmp_path):
    value = helper.make_tensor_value_info("scores", onnx.TensorProto.FLOAT, ["n", 3])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["scores"])], "net", [], [value])
    content = helper.make_model(graph).SerializeToString().replace(b"scores", b"sco\x9bes")
    (tmp_path / "net.onnx").write_bytes(content)
    cal = hetcal.TemperatureScaling().fit(np.eye(3) * 2, [0, 1, 1])
    with pytest.raises(ValueError, match="model must"):
        hetcal.onnx.export(cal, tmp_path / "out.onnx", tmp_path / "net.onnx")
