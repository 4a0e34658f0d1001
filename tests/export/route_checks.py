"""What every calibrator must satisfy on every route: NumPy, JSON, PyTorch and ONNX Runtime."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import clone

import hetcal
from hetcal.calibrators.base import REGISTRY
from hetcal.export import maps

GROUP_NAMES = np.array(["north", "south", "west"])


def examples() -> dict[str, Any]:
    """Unfitted examples of every calibrator of the package, by name."""
    classes = [cls for _, cls in sorted(REGISTRY.items()) if cls.__module__.startswith("hetcal.")]
    return {f"{cls.__name__}-{i}": example for cls in classes for i, example in enumerate(cls._examples())}


def suitable(example: Any, y: Any, *arrays: Any, probs: bool = False) -> tuple[Any, ...]:
    """Labels and arrays of logits or probabilities with as many classes as the example requires.

    Two classes are the first one and the rest.
    """
    if example._required_classes != 2:
        return (y, *arrays)
    rest = np.sum if probs else np.max
    return np.minimum(y, 1), *(np.stack([z[:, 0], rest(z[:, 1:], axis=1)], axis=1) for z in arrays)


def is_exportable(calibrator: Any) -> bool:
    """Whether a fitted calibrator can be exported to PyTorch and ONNX."""
    try:
        maps.exported_map(calibrator)
    except TypeError:
        return False
    return True


@dataclass(frozen=True, eq=False)
class Fitted:
    """A fitted calibrator, test rows, and their probabilities computed by NumPy."""

    calibrator: Any
    test: Any
    codes: Any  # position of each row's group in GROUP_NAMES, or None
    expected: Any
    from_probs: bool = False

    @property
    def groups(self) -> Any:
        return None if self.codes is None else GROUP_NAMES[self.codes]

    def agrees(self, probs: Any, *, exactly: bool = False) -> None:
        """Check that the probabilities of another route equal those of NumPy, up to rounding in float32."""
        if exactly:
            np.testing.assert_array_equal(probs, self.expected)
            return
        assert probs.dtype == np.float32
        # Steep segments and steps of a curve amplify rounding errors of the confidence.
        leaves = maps.leaves(self.calibrator._map())
        tabulated = any(isinstance(leaf, maps.Curve | maps.Steps) for leaf in leaves)
        np.testing.assert_allclose(probs, self.expected, atol=2e-2 if tabulated else 1e-5)
        if self.calibrator.preserves_decision:
            np.testing.assert_array_equal(probs.argmax(axis=1), self.expected.argmax(axis=1))


def fit(example: Any, z: Any, y: Any, test: Any, *, grouped: bool = False) -> Fitted:
    """Fit a copy of an example to logits."""
    y, z, test = suitable(example, y, z, test)
    groups, codes = (np.arange(len(rows)) % 3 if grouped else None for rows in (z, test))
    names = (None if codes is None else GROUP_NAMES[codes] for codes in (groups, codes))
    fit_groups, test_groups = names
    calibrator = clone(example).fit(z, y, groups=fit_groups)
    return Fitted(calibrator, test, codes, calibrator.predict_proba(test, groups=test_groups))


def fit_probs(example: Any, p: Any, y: Any, test: Any) -> Fitted:
    """Fit a copy of an example to probabilities."""
    y, p, test = suitable(example, y, p, test, probs=True)
    calibrator = clone(example).fit(probs=p, labels=y, class_names=list("edcba")[: p.shape[1]])
    return Fitted(calibrator, test, None, calibrator.predict_proba(probs=test), from_probs=True)


# -- routes ---------------------------------------------------------------------------------------


def check_json(fitted: Fitted, folder: Path) -> None:
    hetcal.save(fitted.calibrator, folder / "calibrator.json")
    loaded = hetcal.load(folder / "calibrator.json")
    assert type(loaded) is type(fitted.calibrator)
    rows = {"probs": fitted.test} if fitted.from_probs else {"logits": fitted.test, "groups": fitted.groups}
    fitted.agrees(loaded.predict_proba(**rows), exactly=True)


def check_torch(fitted: Fitted) -> None:
    import torch

    from hetcal.torch import CalibratedModel, probabilities

    model = CalibratedModel(torch.nn.Identity(), fitted.calibrator, from_probs=fitted.from_probs)
    rows = torch.from_numpy(fitted.test)
    groups = None if fitted.codes is None else torch.from_numpy(fitted.codes)
    fitted.agrees(model.predict_proba(rows, groups=groups).numpy())
    fitted.agrees(probabilities(model(rows, groups=groups)).numpy())


def check_exported_torch(fitted: Fitted) -> None:
    import torch

    from hetcal.torch import CalibratedModel, probabilities

    model = CalibratedModel(torch.nn.Identity(), fitted.calibrator, from_probs=fitted.from_probs)
    n = torch.export.Dim("n", min=2)
    inputs, named, shapes = (torch.from_numpy(fitted.test),), {}, {"inputs": ({0: n},)}
    if fitted.codes is not None:
        named, shapes = {"groups": torch.from_numpy(fitted.codes)}, {**shapes, "groups": {0: n}}
    program = torch.export.export(model, inputs, named, dynamic_shapes=shapes)
    fitted.agrees(probabilities(program.module()(*inputs, **named)).numpy())


def check_onnx(fitted: Fitted) -> None:
    from hetcal.onnx import to_model

    outputs = run_onnx(to_model(fitted.calibrator, from_probs=fitted.from_probs), fitted)
    fitted.agrees(outputs["probabilities"])
    np.testing.assert_array_equal(outputs["label"], fitted.expected.argmax(axis=1))


def run_onnx(model: Any, fitted: Fitted) -> dict[str, Any]:
    """Outputs of a model whose inputs are the rows and, if the calibrator has groups, their codes."""
    import onnxruntime

    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = {i.name for i in session.get_inputs()} - {"groups"}
    feed = {names.pop(): fitted.test} | ({} if fitted.codes is None else {"groups": fitted.codes})
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, feed), strict=True))


# -- invariances ----------------------------------------------------------------------------------


def check_invariances(example: Any, z: Any, y: Any) -> None:
    """Probabilities are valid, and the order of rows and classes does not matter."""
    y, z = suitable(example, y, z)
    rng = np.random.default_rng(0)
    before = z.copy()
    calibrator = clone(example).fit(z, y)
    p = calibrator.predict_proba(z)
    np.testing.assert_array_equal(z, before)
    assert p.min() >= 0
    np.testing.assert_allclose(p.sum(axis=1), 1, atol=1e-12)
    if calibrator.preserves_decision:
        np.testing.assert_array_equal(p.argmax(axis=1), z.argmax(axis=1))
    rows = rng.permutation(len(y))
    shuffled = clone(example).fit(z[rows], y[rows])
    np.testing.assert_allclose(shuffled.predict_proba(z), p, atol=1e-4)
    np.testing.assert_allclose(calibrator.predict_proba(z[rows]), p[rows], atol=1e-12)
    columns = rng.permutation(z.shape[1])
    reordered = clone(example).fit(z[:, columns], np.argsort(columns)[y])
    np.testing.assert_allclose(reordered.predict_proba(z[:, columns]), p[:, columns], atol=1e-4)
