"""Tensors in, tensors out. The code for tensors on other devices is tested with tensors on the CPU."""

from __future__ import annotations

import os

import numpy as np
import pytest
from sklearn.base import clone

import hetcal
from hetcal._numeric import device as tensors
from hetcal._numeric.source import NotInMemory
from hetcal._validate import ProbabilitiesGiven, check_tensors
from hetcal._warnings import collect_warnings
from hetcal.calibrators import base

torch = pytest.importorskip("torch")

quiet = pytest.mark.filterwarnings("ignore::hetcal.CalibrationWarning")
CALIBRATORS = {
    "TS": lambda: hetcal.TemperatureScaling(),
    "CTS": lambda: hetcal.ClassWiseTemperatureScaling(),
    "CTS 0.1": lambda: hetcal.ClassWiseTemperatureScaling(0.1),
    "CTS bayes": lambda: hetcal.ClassWiseTemperatureScaling("bayes"),
    "CTS bundles": lambda: hetcal.ClassWiseTemperatureScaling(bundles=3),
    "ClassWise TS": lambda: hetcal.ClassWise(hetcal.TemperatureScaling(), 0.2),
    "VS": lambda: hetcal.VectorScaling(),
    "Platt": lambda: hetcal.PlattScaling(),
    "Auto": lambda: hetcal.AutoCalibrator(cv=2),
    "Isotonic": lambda: hetcal.TopLabelIsotonic(),
    "Identity": lambda: hetcal.Identity(),
}


@pytest.fixture
def sample(make_sample):
    z, y, _ = make_sample(1500, 6, 0, dtype=np.float32)
    rng = np.random.default_rng(5)
    return z, y, rng.uniform(0.2, 3, size=1500), rng.choice(["a", "b", "c"], size=1500)


@pytest.fixture
def forced(monkeypatch):
    """Treat tensors on the CPU as if they were on another device, in small chunks."""
    for module in (base, tensors):
        monkeypatch.setattr(module, "on_device", tensors.is_tensor)
    monkeypatch.setattr(tensors, "_CHUNK", 1000)
    monkeypatch.setattr(tensors, "_SAMPLE_ROWS", 200)


@pytest.mark.parametrize(
    "model", [hetcal.TemperatureScaling(), hetcal.ClassWiseTemperatureScaling("cv")], ids=str
)
def test_images_on_a_device(forced, sample, model):
    z, y, w, _ = sample
    y = np.where(np.arange(1500) % 7, y, 255)
    images = np.moveaxis(z.reshape(15, 10, 10, 6), -1, 1)
    arguments = torch.from_numpy(images.copy()), torch.from_numpy(y.reshape(15, 10, 10))
    expected = clone(model)
    model.fit(*arguments, sample_weight=w.reshape(15, 10, 10), ignore_index=255)
    used, image = y != 255, np.repeat(np.arange(15), 100)
    rows = torch.from_numpy(z[used]), torch.from_numpy(y[used])
    expected.fit(*rows, sample_weight=w[used], fold_groups=image[used])
    p = model.predict_proba(arguments[0])
    assert p.shape == images.shape
    torch.testing.assert_close(p.movedim(1, -1).reshape(-1, 6), expected.predict_proba(torch.from_numpy(z)))


@pytest.mark.parametrize("name", CALIBRATORS)
def test_tensors_on_the_cpu(sample, name):
    z, y, _, _ = sample
    from_arrays = CALIBRATORS[name]().fit(z, y)
    from_tensors = CALIBRATORS[name]().fit(torch.from_numpy(z).requires_grad_(), torch.from_numpy(y))
    p = from_tensors.predict_proba(torch.from_numpy(z))
    assert isinstance(p, torch.Tensor)
    np.testing.assert_array_equal(p.numpy(), from_arrays.predict_proba(z))
    assert from_tensors.n_features_in_ == 6


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", CALIBRATORS)
def test_tensors_on_a_device(sample, forced, name, weighted):
    z, y, w, _ = sample
    w = np.where(np.arange(1500) % 7 == 0, 0, w) if weighted else None
    from_arrays = CALIBRATORS[name]().fit(z, y, sample_weight=w)
    tensor_pair = torch.from_numpy(z), torch.from_numpy(y)
    from_tensors = CALIBRATORS[name]().fit(
        *tensor_pair, sample_weight=None if w is None else torch.from_numpy(w)
    )
    p = from_tensors.predict_proba(tensor_pair[0])
    assert isinstance(p, torch.Tensor)
    np.testing.assert_allclose(p.numpy(), from_arrays.predict_proba(z), atol=2e-6)
    np.testing.assert_array_equal(from_tensors.predict_proba(z), from_tensors.predict_proba(z))
    for attribute in ("alpha_", "n_samples_"):
        if hasattr(from_arrays, attribute):
            np.testing.assert_allclose(
                getattr(from_tensors, attribute), getattr(from_arrays, attribute), rtol=1e-5
            )


@pytest.mark.parametrize("weighted", [False, True])
def test_groups(sample, forced, weighted):
    z, y, w, g = sample
    w = np.where(np.arange(1500) % 7 == 0, 0, w) if weighted else None
    from_arrays = hetcal.ClassWiseTemperatureScaling(0.2).fit(z, y, sample_weight=w, groups=g)
    from_tensors = hetcal.ClassWiseTemperatureScaling(0.2).fit(
        torch.from_numpy(z), torch.from_numpy(y), sample_weight=w, groups=g
    )
    np.testing.assert_allclose(from_tensors.alpha_, from_arrays.alpha_, rtol=1e-5)
    p = from_tensors.predict_proba(torch.from_numpy(z), groups=g)
    np.testing.assert_allclose(p.numpy(), from_arrays.predict_proba(z, groups=g), atol=2e-6)


def test_cross_validated_gamma(sample, forced):
    z, y, _, _ = sample
    from_arrays = hetcal.ClassWiseTemperatureScaling("cv").fit(z, y)
    from_tensors = hetcal.ClassWiseTemperatureScaling("cv").fit(torch.from_numpy(z), torch.from_numpy(y))
    np.testing.assert_allclose(from_tensors.choice_["nll"], from_arrays.choice_["nll"], rtol=0.02)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int32"])
def test_other_dtypes(sample, forced, dtype):
    z, y, _, _ = sample
    logits = torch.from_numpy(np.round(3 * z)).to(getattr(torch, dtype))
    from_tensors = hetcal.ClassWiseTemperatureScaling().fit(logits, torch.from_numpy(y).int())
    from_arrays = hetcal.ClassWiseTemperatureScaling().fit(np.round(3 * z), y)
    np.testing.assert_allclose(from_tensors.alpha_, from_arrays.alpha_, rtol=1e-5)
    p = from_tensors.predict_proba(logits)
    assert p.dtype == (torch.float64 if dtype in ("float64", "int32") else torch.float32)


def test_decisions_are_preserved(forced):
    z = torch.from_numpy(np.random.default_rng(0).integers(0, 3, size=(3000, 8)).astype(np.float32))
    z[:1000, 3] += 1e-7  # a difference that exp() rounds away
    y = z.argmax(1)
    y[::2] = 0
    from_tensors = hetcal.ClassWiseTemperatureScaling(0.5).fit(z, y)
    p = from_tensors.predict_proba(z)
    np.testing.assert_array_equal(p.numpy().argmax(1), z.numpy().argmax(1))


@quiet
def test_separable_and_flat_slices(forced):
    z = np.array([[3.0, 1, 0], [9, 0, 0], [0, 2, 1], [0, 2, 1], [0, 0, 7], [1, 1, 1], [1, 1, 1]])
    y = np.array([0, 0, 1, 2, 2, 1, 0])
    from_arrays = hetcal.ClassWiseTemperatureScaling().fit(z, y)
    from_tensors = hetcal.ClassWiseTemperatureScaling().fit(torch.from_numpy(z), torch.from_numpy(y))
    np.testing.assert_allclose(from_tensors.alpha_, from_arrays.alpha_, rtol=1e-6)


@pytest.mark.parametrize("n_rows", [2, 5])
def test_thin_data_warns_as_for_arrays(forced, n_rows):
    z = np.random.default_rng(0).normal(size=(n_rows + 3, 3))
    y, w = np.arange(n_rows + 3) // n_rows, np.arange(n_rows + 3) < n_rows  # one class has weight
    texts = []
    for rows in ((z, y, w), (torch.from_numpy(z), torch.from_numpy(y), torch.from_numpy(w))):
        with collect_warnings() as messages:
            hetcal.TemperatureScaling().fit(rows[0], rows[1], sample_weight=rows[2])
        texts.append(messages)
    assert texts[0] == texts[1]
    assert any("more than one class" in text for text in texts[1])
    assert any("one row per class" in text for text in texts[1]) == (n_rows < 3)


BAD = {
    "NaN": (lambda z, y: (z * float("nan"), y), "logits must .*got NaN at row 0"),
    "-infinity": (
        lambda z, y: (z.index_fill(0, torch.tensor([7]), -np.inf), y),
        r"logits must .*got -infinity \(-inf\) at row 7",
    ),
    "infinity": (lambda z, y: (z / (z != z[1400, 2]), y), "logits must .*got .* at row 1400"),
    "probabilities": (lambda z, y: (z.softmax(1), y), "logits must"),
    "one dimension": (lambda z, y: (z[:, 0], y), r"logits must .*got shape \(1500,\)"),
    "labels too large": (lambda z, y: (z, y + 5), r"labels must .*got \d+ at row"),
    "labels too few": (lambda z, y: (z, y[1:]), "labels must"),
    "fractions": (lambda z, y: (z, y + 0.5), "labels must"),
    "label of -infinity": (
        lambda z, y: (z, y.double().index_fill(0, torch.tensor([3]), -np.inf)),
        r"labels must .*got -infinity \(-inf\) at row 3",
    ),
    "masked labels": (
        lambda z, y: (z, np.ma.masked_equal(y.numpy(), int(y[0]))),
        "labels must .*masked.* at row 0",
    ),
    "no labels": (lambda z, _: (z, None), "labels must .*got None"),
    "complex": (lambda z, y: (z + 1j, y), "logits must"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_tensors(sample, forced, case):
    z, y, _, _ = sample
    make, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        hetcal.ClassWiseTemperatureScaling().fit(*make(torch.from_numpy(z), torch.from_numpy(y)))


def test_bad_weights(sample, forced):
    z, y, w, _ = sample
    tensor_pair = torch.from_numpy(z), torch.from_numpy(y)
    with pytest.raises(ValueError, match=r"sample_weight must .*got shape"):
        hetcal.TemperatureScaling().fit(*tensor_pair, sample_weight=w[1:])
    with pytest.raises(ValueError, match="sample_weight must"):
        hetcal.TemperatureScaling().fit(*tensor_pair, sample_weight=-w)
    w = w.copy()
    w[4] = -np.inf
    with pytest.raises(ValueError, match=r"sample_weight must .*got -infinity \(-inf\) at row 4"):
        hetcal.TemperatureScaling().fit(*tensor_pair, sample_weight=w)
    with pytest.raises(ValueError, match=r"sample_weight must .*masked.* at row 4"):
        hetcal.TemperatureScaling().fit(*tensor_pair, sample_weight=np.ma.masked_invalid(w))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_invalid_logits_are_refused_at_prediction(forced, sample, bad):
    z, y, _, _ = sample
    calibrator = hetcal.ClassWiseTemperatureScaling().fit(torch.from_numpy(z), torch.from_numpy(y))
    logits = torch.from_numpy(z.copy())
    with pytest.raises(ProbabilitiesGiven):
        calibrator.predict_proba(logits.softmax(1))
    logits[3, 1] = bad
    with pytest.raises(ValueError, match=r"logits must be finite, got .* at row 3; "):
        calibrator.predict_proba(logits)


def test_evaluate_accepts_tensors(sample):
    z, y, _, _ = sample
    p = torch.from_numpy(z).softmax(1)
    result = hetcal.evaluate(p, torch.from_numpy(y))
    assert result.ece == hetcal.evaluate(p.numpy(), y).ece


@pytest.mark.skipif(
    not os.environ.get("TRITON_INTERPRET") and not torch.cuda.is_available(),
    reason="needs CUDA, or Triton's interpreter (TRITON_INTERPRET=1)",
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize(("n", "k"), [(70, 3), (129, 100), (33, 2500)])
def test_triton_passes(forced, monkeypatch, dtype, n, k):
    pytest.importorskip("triton")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rng = np.random.default_rng(0)
    z = torch.from_numpy(3 * rng.normal(size=(n, k))).to(device, getattr(torch, dtype))
    z[5] = 1.0
    y = torch.from_numpy(rng.integers(0, k, size=n)).to(device)
    alpha, active = rng.uniform(0.1, 3, size=k), np.flatnonzero(rng.random(k) < 0.8)
    monkeypatch.setattr(tensors, "_has_triton", lambda _: False)
    with_torch = check_tensors(z, y, None)
    expected = with_torch.evaluate(alpha, active)
    monkeypatch.setattr(tensors, "_has_triton", lambda _: True)
    with_triton = check_tensors(z, y, None)
    assert torch.equal(with_triton.guess, with_torch.guess)
    assert torch.equal(with_triton.top, with_torch.top)
    for a, b in zip(with_triton.evaluate(alpha, active), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9 if dtype == "float64" else 1e-3, atol=2e-3)
    for scale in (alpha, 1e-9 * alpha, alpha[:1]):  # tiny scales cause ties
        p = tensors.scaled_softmax_tensor(z, scale, with_triton.top, with_triton.guess)
        assert torch.equal(p.argmax(dim=1), with_triton.guess)
        monkeypatch.setattr(tensors, "_has_triton", lambda _: False)
        q = tensors.scaled_softmax_tensor(z, scale, with_torch.top, with_torch.guess)
        monkeypatch.setattr(tensors, "_has_triton", lambda _: True)
        assert p.dtype == q.dtype
        torch.testing.assert_close(p, q, rtol=1e-14 if dtype == "float64" else 2e-6, atol=1e-12)
    z[2, 1] = float("inf")
    with pytest.raises(ValueError, match=r"logits must .*got infinity \(inf\) at row 2"):
        check_tensors(z, y, None)


@pytest.mark.skipif(bool(os.environ.get("TRITON_INTERPRET")), reason="the interpreter does not compile")
@pytest.mark.parametrize(("dtype", "sums"), [("fp32", "fp32"), ("fp64", "fp64"), ("fp16", "fp32")])
def test_triton_kernels_compile_without_a_gpu(dtype, sums):
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from hetcal._numeric import triton_kernels as kernels

    common = {"n": "i32", "n_classes": "i32", "rows": "constexpr", "columns": "constexpr"}
    logits = {"z_ptr": f"*{dtype}", "top_ptr": f"*{dtype}"}
    alphas = {"alpha_ptr": f"*{sums}", "active_ptr": "*u8", "out_ptr": f"*{sums}"}
    shape = {"rows": 4, "columns": 1024}
    work = getattr(triton.language, sums.replace("fp", "float"))
    for source in (
        ASTSource(
            kernels._slopes,
            {**logits, "ids_ptr": "*i64", **alphas, **common, "work": "constexpr"},
            {**shape, "work": work},
        ),
        ASTSource(kernels._decide, {**logits, "guess_ptr": "*i64", "finite_ptr": "*fp32", **common}, shape),
        ASTSource(
            kernels._scaled_softmax,
            {
                **logits,
                "guess_ptr": "*i64",
                "alpha_ptr": f"*{sums}",
                "p_ptr": f"*{sums}",
                "tied_ptr": "*i8",
                **common,
                "alpha_step": "i32",
                "work": "constexpr",
            },
            {**shape, "work": work},
        ),
    ):
        assert ".entry" in triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]


def test_tensors_and_arrays_agree_on_what_looks_like_probabilities():
    z = np.full((10, 2), 0.5)
    z[:, 1] += 1e-4  # the rows do not sum to 1 in float64, but do in float16 up to rounding
    y = torch.zeros(10, dtype=torch.int64)
    check_tensors(torch.from_numpy(z), y)
    with pytest.raises(ProbabilitiesGiven):
        check_tensors(torch.from_numpy(z).half(), y)


def test_rows_on_a_device_are_not_transformed_or_sampled(sample):
    z, y, _, _ = sample
    source = check_tensors(torch.from_numpy(z), torch.from_numpy(y))
    for use in (lambda: source.transform(lambda logits, _: logits), lambda: source.draw_sample(2, salt=0)):
        with pytest.raises(NotInMemory, match=r"logits must .*pass logits\.cpu\(\)"):
            use()
