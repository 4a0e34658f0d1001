"""A fitted calibrator reduced to what it does to a row: the form that other runtimes are built from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from hetcal._numeric.probabilities import LEAST_FLOOR
from hetcal._typing import Float
from hetcal.calibrators import (
    AutoCalibrator,
    Chain,
    ClassWise,
    ClassWiseTemperatureScaling,
    Identity,
    Mixture,
    PlattScaling,
    TemperatureScaling,
    TopLabelHistogram,
    TopLabelIsotonic,
    VectorScaling,
)

__all__ = ["SURE", "Chained", "Map", "Mixed", "Tree", "floor_of", "leaves", "map_of", "tree_of"]


SURE = 1e4  # log-odds beyond count as this in Platt scaling


@dataclass(frozen=True, eq=False)
class Map:
    """What a calibrator does to a row of logits z with predicted class ŷ.

    Attributes
    ----------
    kind : str
        "temperature": ``softmax(θ₀ z)``. "vector": ``softmax(θ_a ⊙ z + θ_b)`` with θ = (a, b).
        "platt": confidence ``sigmoid(θ₀ x + θ₁)`` with x the log-odds of the predicted class, the rest shared
        out as before. "curve": confidence through the corners `x`, `y`, linear in between. "steps": it
        becomes ``y[i]`` where it lies in ``(x[i], x[i + 1]]``.
    n_classes : int
    theta : (1, p) or (S, p) parameters; row ŷ, or the row of the group, counts
    groups : (S,) names of the groups where rows of `theta` are groups, else None
    x, y : arrays of a curve or of steps, else None
    keeps_decision : bool
        Of a vector: no class may pass the predicted one, whose scaled logit is the largest.
    center : bool
        Of a vector: the row's mean is subtracted first, as `arrays.centre` does.
    pool : bool
        Of "platt": classes that would overtake share with the predicted one.
    """

    kind: Literal["temperature", "vector", "platt", "curve", "steps"]
    n_classes: int
    theta: Float
    groups: NDArray[Any] | None = None
    x: Float | None = None
    y: Float | None = None
    keeps_decision: bool = True
    center: bool = False
    pool: bool = False

    @property
    def sliced(self) -> bool:
        """Whether rows differ in their parameters."""
        return len(self.theta) > 1 or self.groups is not None


@dataclass(frozen=True, eq=False)
class Chained:
    """Maps one after the other, each on the logarithm of the probabilities before it."""

    steps: tuple[Map | Chained | Mixed, ...]


@dataclass(frozen=True, eq=False)
class Mixed:
    """A weighted mean of the probabilities of several maps."""

    weights: Float
    members: tuple[Map | Chained | Mixed, ...]


Tree = Map | Chained | Mixed


def tree_of(calibrator: Any) -> Tree:
    """Reduce a fitted calibrator to its map, or to the maps that it is made of."""
    if isinstance(calibrator, AutoCalibrator):
        check_is_fitted(calibrator)
        return tree_of(calibrator.best_)
    if isinstance(calibrator, Chain):
        check_is_fitted(calibrator)
        return Chained(tuple(map(tree_of, calibrator.steps_)))
    if isinstance(calibrator, Mixture):
        check_is_fitted(calibrator)
        return Mixed(np.asarray(calibrator.weights_, float), tuple(map(tree_of, calibrator.calibrators_)))
    return map_of(calibrator)


def floor_of(calibrator: Any) -> float:
    """What smaller probabilities count as for a fitted calibrator; the identity leaves them as they are."""
    floor = None if isinstance(calibrator, Identity) else getattr(calibrator, "prob_floor_", None)
    return LEAST_FLOOR if floor is None else float(floor)


def leaves(tree: Tree) -> list[Map]:
    """All maps of a tree."""
    if isinstance(tree, Map):
        return [tree]
    return [
        leaf for part in (tree.steps if isinstance(tree, Chained) else tree.members) for leaf in leaves(part)
    ]


def map_of(calibrator: Any) -> Map:
    """Reduce a fitted calibrator to its map; those that hold whole estimators have none."""
    maker = _MAKERS.get(type(calibrator))
    if maker is None:
        raise TypeError(
            f"calibrator must be one of hetcal's own, got {type(calibrator).__module__}."
            f"{type(calibrator).__name__}"
        )
    check_is_fitted(calibrator)
    return maker(calibrator)


def _identity(cal: Identity) -> Map:
    return Map("temperature", cal.n_features_in_, np.ones((1, 1)))


def _temperature(cal: TemperatureScaling) -> Map:
    return Map("temperature", cal.n_features_in_, np.array([[float(cal.alpha_)]]))


def _class_temperatures(cal: ClassWiseTemperatureScaling) -> Map:
    return Map("temperature", cal.n_features_in_, np.asarray(cal.alpha_, float)[:, None], cal.groups_)


def _vector(cal: VectorScaling) -> Map:
    theta = np.concatenate([cal.scale_, cal.bias_])[None]
    kept, centred = bool(cal.preserves_decision), bool(cal.center)
    return Map("vector", cal.n_features_in_, theta, keeps_decision=kept, center=centred)


def _platt(cal: PlattScaling) -> Map:
    return Map("platt", cal.n_features_in_, np.array([[cal.slope_, cal.intercept_]]), pool=bool(cal.pool))


def _curve(cal: TopLabelIsotonic) -> Map:
    return Map("curve", cal.n_features_in_, np.zeros((1, 0)), x=np.asarray(cal.x_), y=np.asarray(cal.y_))


def _steps(cal: TopLabelHistogram) -> Map:
    x, y = np.asarray(cal.edges_), np.asarray(cal.values_)
    return Map("steps", cal.n_features_in_, np.zeros((1, 0)), x=x, y=y)


def _class_wise(cal: ClassWise) -> Map:
    kind = _BASES.get(type(cal.base))
    if kind is None or cal.parameters_ is None:
        raise TypeError(
            f"calibrator must have parameters, got ClassWise({type(cal.base).__name__}()), which holds an "
            "estimator for every slice; use ClassWise with temperature, Platt or vector scaling"
        )
    theta = np.asarray(cal.parameters_, float)
    if cal.slices_.bundles is not None:
        theta = theta[cal.slices_.bundles]
    return Map(
        *(kind, cal.n_features_in_, theta, cal.slices_.groups),
        keeps_decision=bool(cal.preserves_decision),
        pool=bool(getattr(cal.base, "pool", False)),
    )


_BASES: dict[type, Literal["temperature", "vector", "platt"]] = {
    TemperatureScaling: "temperature",
    PlattScaling: "platt",
    VectorScaling: "vector",
}
_MAKERS: dict[type, Callable[[Any], Map]] = {
    ClassWise: _class_wise,
    ClassWiseTemperatureScaling: _class_temperatures,
    Identity: _identity,
    PlattScaling: _platt,
    TemperatureScaling: _temperature,
    TopLabelHistogram: _steps,
    TopLabelIsotonic: _curve,
    VectorScaling: _vector,
}
