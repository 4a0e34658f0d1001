"""The calibrators that ``study.py`` compares: hetcal's, and those of other installed libraries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import peers
from sklearn.linear_model import LogisticRegression

import hetcal
from hetcal import ClassWise, ClassWiseTemperatureScaling, PlattScaling, TopLabelIsotonic, VectorScaling

__all__ = ["Method", "methods"]

Predict = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Method:
    """A calibration method.

    ``fit`` takes logits, labels and groups, and returns a function from logits and groups to probabilities.
    ``grouped`` methods use the groups and run only on problems that have groups. A method runs only on
    problems with ``min_classes`` to ``max_classes`` classes. With ``once``, it runs only on the first split.
    """

    fit: Callable[[Any, Any, Any], Predict]
    grouped: bool = False
    min_classes: int = 2
    max_classes: int = 10**9
    once: bool = False

    def suits(self, n_classes: int, groups: Any, split: int) -> bool:
        """Return whether the method runs on this split of a problem with these classes and groups."""
        if self.once and split > 0:
            return False
        return self.min_classes <= n_classes <= self.max_classes and (groups is not None or not self.grouped)


def methods() -> dict[str, Method]:
    """Return the methods by their names in the results."""
    return {
        "Identity": _own(hetcal.Identity),
        "TS": _own(hetcal.TemperatureScaling),
        "Platt": _own(PlattScaling),
        "VS": _own(VectorScaling),
        "VS, ridge": _own(lambda: VectorScaling(0.01)),
        "VS, kept": _own(lambda: VectorScaling(0.01, center=True, keep_decision=True)),
        "CTS": _own(ClassWiseTemperatureScaling),
        "CTS cv": _own(lambda: ClassWiseTemperatureScaling("cv")),
        "CTS bayes": _own(lambda: ClassWiseTemperatureScaling("bayes")),
        "CTS, 5 bundles": _own(lambda: ClassWiseTemperatureScaling(bundles=5), min_classes=6),
        "CTS, Brier loss": _own(lambda: ClassWiseTemperatureScaling(loss="brier"), max_classes=20),
        "CTS, ECE loss": _own(lambda: ClassWiseTemperatureScaling(loss="ece"), max_classes=20),
        "class-wise Platt, Γ = 1": _own(lambda: ClassWise(PlattScaling(), 1.0)),
        "class-wise Platt bayes": _own(lambda: ClassWise(PlattScaling(), "bayes")),
        "class-wise isotonic": _own(lambda: ClassWise(TopLabelIsotonic())),
        "TS by group": _own(ClassWiseTemperatureScaling, grouped=True),
        "TS by group, bayes": _own(lambda: ClassWiseTemperatureScaling("bayes"), grouped=True),
        "Platt by group, bayes": _own(lambda: ClassWise(PlattScaling(), "bayes"), grouped=True),
        **_peers(),
        "Auto": _own(hetcal.AutoCalibrator),
        "Auto by group": _own(hetcal.AutoCalibrator, grouped=True),
    }


def _own(make: Callable[[], Any], *, grouped: bool = False, **limits: int) -> Method:
    def group_options(groups: Any) -> dict[str, Any]:
        return {"groups": groups} if grouped else {}

    def fit(z: Any, y: Any, groups: Any) -> Predict:
        calibrator = make().fit(z, y, **group_options(groups))
        return lambda z, groups: calibrator.predict_proba(z, **group_options(groups))

    return Method(fit, grouped, **limits)


def _peers() -> dict[str, Method]:
    methods = {
        "scikit-learn, temperature": Method(_sklearn("temperature")),
        "scikit-learn, isotonic": Method(_sklearn("isotonic")),
        "Dirichlet": Method(_dirichlet, max_classes=20),
    }
    if peers.is_installed("netcal"):
        methods["netcal, temperature"] = Method(_netcal("TemperatureScaling"))
        methods["netcal, beta"] = Method(_netcal("BetaCalibration"), max_classes=20, once=True)
    if peers.is_installed("probmetrics"):
        methods["probmetrics SVS"] = Method(_probmetrics("SVSCalibrator"))
        methods["probmetrics SMS"] = Method(_probmetrics("SMSCalibrator"), max_classes=20, once=True)
    return methods


def _probmetrics(name: str) -> Callable[[Any, Any, Any], Predict]:
    def fit(z: Any, y: Any, groups: Any) -> Predict:  # noqa: ARG001
        import torch
        from probmetrics import calibrators
        from probmetrics.distributions import CategoricalLogits

        model = getattr(calibrators, name)().fit_torch(
            CategoricalLogits(torch.from_numpy(z)), torch.from_numpy(y)
        )

        def predict(z: Any, groups: Any) -> Any:  # noqa: ARG001
            with torch.no_grad():
                return model.predict_proba_torch(CategoricalLogits(torch.from_numpy(z))).get_probs().numpy()

        return predict

    return fit


def _netcal(name: str) -> Callable[[Any, Any, Any], Predict]:
    """Return a fit of a netcal calibrator on float64 probabilities; in float32, its gradients vanish."""

    def fit(z: Any, y: Any, groups: Any) -> Predict:  # noqa: ARG001
        import netcal.scaling

        model = getattr(netcal.scaling, name)()
        model.fit(_probabilities(z), y, tensorboard=False)

        def predict(z: Any, groups: Any) -> Any:  # noqa: ARG001
            p = np.asarray(model.transform(_probabilities(z)))
            # For two classes, netcal returns only the probability of the second.
            return p if p.ndim == 2 and p.shape[1] > 1 else np.stack([1 - p.ravel(), p.ravel()], axis=1)

        return predict

    return fit


def _sklearn(method: str) -> Callable[[Any, Any, Any], Predict]:
    def fit(z: Any, y: Any, groups: Any) -> Predict:  # noqa: ARG001
        from sklearn.calibration import CalibratedClassifierCV
        from sklearn.frozen import FrozenEstimator

        rows = np.arange(len(y))
        model = CalibratedClassifierCV(
            FrozenEstimator(peers.Logits(z.shape[1])), method=method, cv=[(rows, rows)], ensemble=False
        ).fit(_decisions(z), y)

        return lambda z, groups: _all_columns(model, _decisions(z), z.shape[1])  # noqa: ARG005

    return fit


def _decisions(z: Any) -> Any:
    """Convert logits to scikit-learn's decision function, which has one column for two classes."""
    return z if z.shape[1] > 2 else z[:, 1:] - z[:, :1]


def _dirichlet(z: Any, y: Any, groups: Any) -> Predict:  # noqa: ARG001
    """Fit Dirichlet calibration: multinomial logistic regression on log-probabilities with a small penalty.

    pip cannot install the authors' package, dirichletcal, because its metadata are invalid.
    """
    model = LogisticRegression(C=1.0, max_iter=300).fit(_log_probabilities(z), y)
    return lambda z, groups: _all_columns(model, _log_probabilities(z), z.shape[1])  # noqa: ARG005


def _all_columns(model: Any, x: Any, n_classes: int) -> Any:
    """Add the columns of classes without training rows, which scikit-learn omits."""
    p = np.full((len(x), n_classes), 1e-9)
    p[:, model.classes_] = np.maximum(model.predict_proba(x), 1e-9)
    return p / p.sum(axis=1, keepdims=True)


def _probabilities(z: Any) -> Any:
    e = np.exp(z.astype(np.float64) - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def _log_probabilities(z: Any) -> Any:
    return np.log(np.maximum(_probabilities(z), 1e-12))
