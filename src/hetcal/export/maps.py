"""Maps from logits to probabilities: the building blocks of fitted calibrators.

``Calibrator._map()`` returns the map of a fitted calibrator. The maps predict with NumPy, and
:mod:`hetcal.export.torch` and :mod:`hetcal.export.onnx` translate them.

A slice is a set of rows that share parameters, such as the rows with the same predicted class. `Temperature`,
`Vector` and `Platt` store their parameters as an array `theta` of shape (S, p) with one row per slice. S is 1
if all rows of logits share the parameters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit
from sklearn.utils.validation import check_is_fitted

from hetcal._numeric.binary import LogOdds, smooth_distance
from hetcal._numeric.curves import Curves
from hetcal._numeric.device import scaled_softmax_tensor
from hetcal._numeric.families import MAX_LOG_ODDS, PlattFamily, VectorFamily
from hetcal._numeric.matrix import Inputs, apply_matrix
from hetcal._numeric.passes import scaled_softmax, spread, top_margin
from hetcal._numeric.probabilities import centre, keep_decision, softmax
from hetcal._numeric.rows import decide
from hetcal._numeric.threads import one_blas_thread, over_blocks
from hetcal._typing import CodeArray, Float, FloatArray, IntArray
from hetcal.partition import Slices

__all__ = [
    "MAX_LOG_ODDS",
    "Binary",
    "Chain",
    "Curve",
    "External",
    "Map",
    "Matrix",
    "Mixture",
    "PerSlice",
    "Platt",
    "Steps",
    "Temperature",
    "Vector",
    "exported_map",
    "group_names",
    "leaves",
    "logits_from",
    "rows_by_slice",
    "theta_by_class",
]

_MAX_SHARED = 1 << 24  # a mixture reuses the probabilities of a map if they have at most this many entries


class Map(ABC):
    """A map from rows of logits to rows of probabilities."""

    #: Maps that this one combines.
    parts: tuple[Map, ...] = ()
    #: How rows are assigned to slices; None if this map has no slices of its own.
    slices: Slices | None = None

    @property
    def keeps_decision(self) -> bool:
        """Whether the argmax of the probabilities is always that of the logits.

        This default implementation returns True if all parts keep the argmax, or if there are no parts.
        """
        return all(part.keeps_decision for part in self.parts)

    @abstractmethod
    def predict(
        self, z: FloatArray, groups: ArrayLike | None = None, guess: CodeArray | None = None
    ) -> FloatArray:
        """Probabilities (n, K), in the dtype of `z` unless this map is or contains an `External` map.

        Parameters
        ----------
        z : (n, K) validated logits
        groups : (n,) group of every row, for maps that slice by group
        guess : (n,) argmax of every row if the caller has already computed it, otherwise None
        """

    @property
    def runs_on_device(self) -> bool:
        """Whether this map supports :meth:`predict_on_device`."""
        return False

    def predict_on_device(self, logits: Any, top: Any, guess: Any) -> Any:
        """Probabilities for a tensor of valid logits, computed on its device.

        `top` and `guess` are the maximum and the predicted class of every row.
        """
        raise NotImplementedError

    def is_same(self, other: Map) -> bool:
        """Whether another map is known to give the same probabilities."""
        return self is other

    def check(self) -> None:
        """Raise ValueError if a parameter is invalid, as it may be in a file of unknown origin."""
        for part in self.parts:
            part.check()

    def check_exportable(self) -> None:
        """Raise TypeError if this map cannot be translated to PyTorch and ONNX."""
        for part in self.parts:
            part.check_exportable()


class _Clipped(Map):
    """A map that preserves the argmax if `keep_decision` is True, by clipping the calibrated logits."""

    keep_decision: bool

    @property
    def keeps_decision(self) -> bool:
        """Whether the argmax is preserved: the value of `keep_decision`."""
        return self.keep_decision


@dataclass(frozen=True, eq=False)
class Temperature(Map):
    """Temperature scaling, ``softmax(α z)``; `theta` (S, 1) contains the inverse temperatures α."""

    theta: Float
    slices: Slices | None = None

    def predict(
        self, z: FloatArray, groups: ArrayLike | None = None, guess: CodeArray | None = None
    ) -> FloatArray:
        """``softmax(α z)`` with the α of each row's slice."""
        guess = decide(z) if guess is None else guess
        return scaled_softmax(z, self.alpha(guess, groups), guess)

    def is_same(self, other: Map) -> bool:
        """Whether both maps apply the same single temperature to all rows."""
        if not isinstance(other, Temperature) or self.slices is not None or other.slices is not None:
            return False
        return np.array_equal(self.theta, other.theta)

    def alpha(self, guess: CodeArray, groups: ArrayLike | None) -> Float:
        """Inverse temperature of every row, (n,)."""
        alpha: Float = self.theta[:, 0]
        if self.slices is None:
            return np.full(len(guess), alpha[0])
        return alpha[self.slices.assign(guess, groups)]

    @property
    def runs_on_device(self) -> bool:
        """True unless rows are sliced by group, because `predict_on_device` receives no groups."""
        return self.slices is None or self.slices.groups is None

    def predict_on_device(self, logits: Any, top: Any, guess: Any) -> Any:
        """``softmax(α z)``, computed on the tensor's device."""
        return scaled_softmax_tensor(logits, theta_by_class(self)[:, 0], top, guess)

    def check(self) -> None:
        """Raise ValueError unless all inverse temperatures are positive and finite."""
        is_valid = bool(((self.theta > 0) & np.isfinite(self.theta)).all())
        _require(is_valid, "alpha", "be positive and finite", self.theta)


@dataclass(frozen=True, eq=False)
class Vector(_Clipped):
    """Vector scaling, ``softmax(a ⊙ z + b)``; `theta` (S, 2K) contains (a, b).

    Attributes
    ----------
    keep_decision : bool
        Limit every entry of ``a ⊙ z + b`` to the entry of the predicted class, so that no class overtakes it.
    center : bool
        Subtract the mean of every row of z first, as :func:`hetcal._numeric.probabilities.centre` does.
    """

    theta: Float
    slices: Slices | None = None
    keep_decision: bool = False
    center: bool = False

    def predict(
        self, z: FloatArray, groups: ArrayLike | None = None, guess: CodeArray | None = None
    ) -> FloatArray:
        """``softmax(a ⊙ z + b)`` with the parameters of each row's slice."""
        guess = decide(z) if guess is None else guess
        ids = _slice_ids(self.slices, guess, groups)
        return VectorFamily(keep=self.keep_decision).predict(
            centre(z) if self.center else z, self.theta, ids, guess
        )

    def is_same(self, other: Map) -> bool:
        """Whether both maps have the same options and apply the same parameters to all rows."""
        if not isinstance(other, Vector) or self.slices is not None or other.slices is not None:
            return False
        same_options = (self.keep_decision, self.center) == (other.keep_decision, other.center)
        return same_options and np.array_equal(self.theta, other.theta)

    def check(self) -> None:
        """Raise ValueError unless all parameters are finite."""
        _require(bool(np.isfinite(self.theta).all()), "scale and bias", "be finite", self.theta)


@dataclass(frozen=True, eq=False)
class Matrix(_Clipped):
    """Matrix scaling, ``softmax(x + D x + b)``, where x is computed from the logits by `inputs`.

    Attributes
    ----------
    inputs : divides the logits by a temperature, limits their range and subtracts a constant per row
        Masked (practically impossible) classes are treated differently; see
        :class:`hetcal._numeric.matrix.Inputs`.
    change : (K, K) array, D
    bias : (K,) array, b
    keep_decision : bool
        Limit every calibrated logit to that of the predicted class, so that no class overtakes it.
    curves : functions whose values are added to ``x + D x + b``, one per class, or None
        The function of a class depends on the log-odds of this class under ``softmax(x)``.
    """

    inputs: Inputs
    change: Float
    bias: Float
    keep_decision: bool = False
    curves: Curves | None = None

    def predict(
        self,
        z: FloatArray,
        groups: ArrayLike | None = None,  # noqa: ARG002
        guess: CodeArray | None = None,
    ) -> FloatArray:
        """Probabilities in the dtype of `z`, computed in float64."""
        guess = decide(z) if self.keep_decision and guess is None else guess
        out = np.empty_like(z)

        def predict_block(start: int, stop: int) -> None:
            u = apply_matrix(z[start:stop], self.inputs, self.change, self.bias, self.curves)
            if not self.keep_decision:
                out[start:stop] = softmax(u)
                return
            predicted = cast("CodeArray", guess)[start:stop]
            np.minimum(u, u[np.arange(len(u)), predicted][:, None], out=u)
            out[start:stop] = keep_decision(softmax(u).astype(z.dtype, copy=False), predicted)

        with one_blas_thread():
            over_blocks(predict_block, *z.shape)
        return out

    def check(self) -> None:
        """Raise ValueError unless numbers are finite, shapes match, and α, limit and widths are positive."""
        for name in ("alpha", "limit"):
            value = np.array(getattr(self.inputs, name), np.float64)
            _require(bool(0 < value < np.inf), name, "be positive and finite", value)
        k = len(self.bias)
        _require(self.change.shape == (k, k), "change", "have a row and a column per class", self.change)
        values = np.append(self.change.ravel(), self.bias)
        _require(bool(np.isfinite(values).all()), "change and bias", "be finite", values)
        if self.curves is not None:
            knots, widths, weights = self.curves.knots, self.curves.widths, self.curves.weights
            is_valid = knots.ndim == 2 and len(knots) == k and knots.shape == widths.shape == weights.shape
            _require(is_valid, "knots, widths and weights", "have a row per class and equal shapes", knots)
            is_valid = bool((np.isfinite(knots) & np.isfinite(weights)).all())
            _require(is_valid, "knots and weights", "be finite", np.append(knots, weights))
            _require(bool(((widths > 0) & np.isfinite(widths)).all()), "widths", "be positive", widths)


@dataclass(frozen=True, eq=False)
class Platt(Map):
    """Platt scaling: the confidence becomes ``sigmoid(a x + b)``; `theta` (S, 2) contains (a, b).

    x is the log-odds of the predicted class. The other classes share the remaining probability in the
    proportions of the softmax, unless one of them would overtake the predicted class.

    Attributes
    ----------
    pool : bool
        What to do if another class would overtake the predicted one. If True, the predicted class and as many
        of the most probable other classes as necessary receive their mean probability. If False, a confidence
        below 1/K is raised to 1/K, and the shares of the other classes are mixed with a uniform distribution
        until none of them overtakes the predicted class.
    """

    theta: Float
    slices: Slices | None = None
    pool: bool = False

    def predict(
        self, z: FloatArray, groups: ArrayLike | None = None, guess: CodeArray | None = None
    ) -> FloatArray:
        """Probabilities with the parameters of each row's slice."""
        guess = decide(z) if guess is None else guess
        ids = _slice_ids(self.slices, guess, groups)
        return PlattFamily(pool=self.pool).predict(z, self.theta, ids, guess)

    def check(self) -> None:
        """Raise ValueError unless all parameters are finite."""
        _require(bool(np.isfinite(self.theta).all()), "slope and intercept", "be finite", self.theta)


@dataclass(frozen=True, eq=False)
class Binary(_Clipped):
    """Binary scaling: class 1 has the probability ``sigmoid(f(x))``, and class 0 the rest.

    x is ``α (z₁ − z₀)``, clipped to [−limit, limit].

    ``f(x) = c₀ + c₁ x + c₂ x² + Σ_j w_j s_j(x)`` with the smooth distances
    ``s_j(x) = h_j log(1 + e^t) + h_j log(1 + e^−t)``, ``t = (x − κ_j) / h_j``.

    Attributes
    ----------
    alpha, limit : float
    polynomial : (3,) the coefficients c
    knots, widths, weights : (m,) each, κ, h and w
    keep_decision : bool
        Replace f(x) with 0 if it would give the predicted class a probability below 1/2.
    """

    alpha: float
    limit: float
    polynomial: Float
    knots: Float
    widths: Float
    weights: Float
    keep_decision: bool = False

    def predict(
        self,
        z: FloatArray,
        groups: ArrayLike | None = None,  # noqa: ARG002
        guess: CodeArray | None = None,
    ) -> FloatArray:
        """Probabilities of both classes, computed in float64."""
        guess = decide(z) if guess is None and self.keep_decision else guess
        out = np.empty_like(z)

        def predict_block(start: int, stop: int) -> None:
            rows = slice(start, stop)
            u = self.calibrated_log_odds(z[rows])
            if guess is not None and self.keep_decision:
                u = np.where(guess[rows] == 1, np.maximum(u, 0), np.minimum(u, 0))
            out[rows, 0], out[rows, 1] = expit(-u), expit(u)
            if guess is not None and self.keep_decision:
                keep_decision(out[rows], guess[rows])

        over_blocks(predict_block, len(z), 2 * (3 + len(self.knots)))
        return out

    def calibrated_log_odds(self, z: FloatArray) -> Float:
        """``f(x)`` of every row, (n,), before `keep_decision` is applied."""
        x = LogOdds(self.alpha, self.limit)(z)
        u = self.polynomial[0] + x * (self.polynomial[1] + x * self.polynomial[2])
        for knot, width, weight in zip(self.knots, self.widths, self.weights, strict=True):
            u += weight * smooth_distance(x, knot, width)
        return np.asarray(u)

    def check(self) -> None:
        """Raise ValueError unless α, limit and widths are positive and finite, and f has valid coefficients.

        f must have three polynomial coefficients, and one width and one weight per knot. All coefficients,
        knots and weights must be finite.
        """
        positive = np.array([self.alpha, self.limit, *self.widths])
        is_valid = bool(((positive > 0) & np.isfinite(positive)).all())
        _require(is_valid, "alpha, limit and width", "be positive and finite", positive)
        finite = np.array([*self.polynomial, *self.knots, *self.weights])
        is_valid = len(self.polynomial) == 3 and self.knots.shape == self.widths.shape == self.weights.shape
        is_valid = is_valid and bool(np.isfinite(finite).all())
        rule = "be finite, with 3 coefficients, and one width and one weight per knot"
        _require(is_valid, "polynomial, knots and weights", rule, finite)


@dataclass(frozen=True, eq=False)
class Curve(Map):
    """Map of the confidence by linear interpolation between the m knots ``(x[i], y[i])``.

    An interpolated confidence below 1/K is raised to 1/K.
    """

    x: Float
    y: Float

    def predict(
        self,
        z: FloatArray,
        groups: ArrayLike | None = None,  # noqa: ARG002
        guess: CodeArray | None = None,
    ) -> FloatArray:
        """Probabilities with interpolated confidences."""
        margin, guess = top_margin(z, guess)
        return spread(z, np.interp(expit(margin), self.x, self.y), guess=guess)

    def check(self) -> None:
        """Raise ValueError if `x` decreases, a number lies outside [0, 1], or the shapes differ."""
        _require(_is_increasing(self.x), "x", "lie in [0, 1] and not decrease", self.x)
        is_valid = _is_fraction(self.y) and self.y.shape == self.x.shape
        _require(is_valid, "y", "lie in [0, 1], one per knot", self.y)


@dataclass(frozen=True, eq=False)
class Steps(Map):
    """A confidence in ``(edges[i], edges[i + 1]]`` becomes ``values[i]``, or 1/K if that is larger.

    The arrays `edges` and `values` have the shapes (m + 1,) and (m,).
    """

    edges: Float
    values: Float

    def predict(
        self,
        z: FloatArray,
        groups: ArrayLike | None = None,  # noqa: ARG002
        guess: CodeArray | None = None,
    ) -> FloatArray:
        """Probabilities with the confidence of each row's bin."""
        margin, guess = top_margin(z, guess)
        bins = np.searchsorted(self.edges, expit(margin), side="left") - 1
        return spread(z, self.values[np.clip(bins, 0, len(self.edges) - 2)], guess=guess)

    def check(self) -> None:
        """Raise ValueError if `edges` decreases, a number is outside [0, 1], or the lengths do not match."""
        _require(_is_increasing(self.edges), "edges", "lie in [0, 1] and not decrease", self.edges)
        is_valid = _is_fraction(self.values) and len(self.values) == len(self.edges) - 1
        _require(is_valid, "values", "lie in [0, 1], one per bin", self.values)


@dataclass(frozen=True, eq=False)
class Chain(Map):
    """Maps in sequence; each after the first is applied to the logarithm of the previous probabilities."""

    parts: tuple[Map, ...]

    def predict(
        self, z: FloatArray, groups: ArrayLike | None = None, guess: CodeArray | None = None
    ) -> FloatArray:
        """Probabilities of the last step."""
        guess = decide(z) if guess is None else guess
        first, *rest = self.parts
        return self.finish(rest, first.predict(z, groups, guess), groups, guess)

    def finish(
        self, rest: Sequence[Map], p: FloatArray, groups: ArrayLike | None, guess: CodeArray
    ) -> FloatArray:
        """Apply the maps after the first one, `rest`; return the probabilities of the last one.

        `p` are the probabilities of the first map.
        """
        for previous, part in pairwise((self.parts[0], *rest)):
            if not previous.keeps_decision or _has_external(previous):
                guess = p.argmax(axis=1)
            p = part.predict(logits_from(p, guess), groups, guess)
        return p


@dataclass(frozen=True, eq=False)
class Mixture(Map):
    """The mean of the probabilities of `parts`, weighted by `weights` (M,)."""

    weights: Float
    parts: tuple[Map, ...]

    def predict(
        self, z: FloatArray, groups: ArrayLike | None = None, guess: CodeArray | None = None
    ) -> FloatArray:
        """Weighted mean of the members' probabilities."""
        guess = decide(z) if guess is None else guess
        total = np.zeros(z.shape)
        computed: list[tuple[Map, FloatArray]] = []  # reused, since members often start with the same map
        for weight, part in zip(self.weights, self.parts, strict=True):
            first, *rest = part.parts if isinstance(part, Chain) else (part,)
            p = next((p for other, p in computed if first.is_same(other)), None)
            if p is None:
                p = first.predict(z, groups, guess)
                if z.size <= _MAX_SHARED:
                    computed.append((first, p))
            if isinstance(part, Chain):
                p = part.finish(rest, p, groups, guess)
            total += weight * p
        np.minimum(total, 1, out=total)  # rounding can give more than 1
        mean: FloatArray = total.astype(z.dtype, copy=False)
        return keep_decision(mean, guess) if self.keeps_decision else mean

    def check(self) -> None:
        """Raise ValueError unless the weights lie in [0, 1] and sum to 1, and all parts are valid."""
        is_valid = _is_fraction(self.weights) and bool(abs(self.weights.sum() - 1) < 1e-9)
        _require(is_valid, "weights", "lie in [0, 1] and sum to 1", self.weights)
        super().check()


@dataclass(frozen=True, eq=False)
class PerSlice(Map):
    """A separate map for each slice; such a combination of maps cannot be exported."""

    parts: tuple[Map, ...]
    slices: Slices

    def predict(
        self, z: FloatArray, groups: ArrayLike | None = None, guess: CodeArray | None = None
    ) -> FloatArray:
        """Probabilities of every row from the map of its slice."""
        guess = decide(z) if guess is None else guess
        ids = self.slices.assign(guess, groups)
        out: FloatArray | None = None
        for part, rows in zip(self.parts, rows_by_slice(ids, len(self.parts)), strict=True):
            if len(rows):
                p = part.predict(z[rows], None, guess[rows])
                out = np.empty(z.shape, p.dtype) if out is None else out
                out[rows] = p
        return np.empty_like(z) if out is None else out

    def check_exportable(self) -> None:
        """Raise TypeError, because a separate map per slice cannot be exported."""
        raise TypeError(
            "calibrator must be exportable, got ClassWise with a base other than TemperatureScaling, "
            "PlattScaling and VectorScaling; use one of these three as base"
        )


@dataclass(frozen=True, eq=False)
class External(Map):
    """A map that calls a calibrator to predict, and therefore cannot be exported.

    It is used for calibrators that define no map themselves, such as estimators of other libraries.

    Attributes
    ----------
    name : str, module and name of the calibrator's class, for error messages
    function : called as ``function(z, groups)``, returns probabilities (n, K)
    preserves_decision : bool, the calibrator's attribute of this name; False if there is none
    slices : the slices by group if the calibrator was fitted with groups, otherwise None
    """

    name: str
    function: Callable[[FloatArray, ArrayLike | None], FloatArray]
    preserves_decision: bool = False
    slices: Slices | None = None

    @property
    def keeps_decision(self) -> bool:
        """Whether the calibrator claims to preserve the argmax."""
        return self.preserves_decision

    def predict(
        self,
        z: FloatArray,
        groups: ArrayLike | None = None,
        guess: CodeArray | None = None,  # noqa: ARG002
    ) -> FloatArray:
        """Probabilities that the calibrator itself computes."""
        return np.asarray(self.function(z, groups))

    def check_exportable(self) -> None:
        """Raise TypeError, because only the calibrator itself can compute this map."""
        raise TypeError(_NO_MAP.format(self.name))


_NO_MAP = (
    "calibrator must be an object of a hetcal class, or of a subclass that defines _map(), to be exported, "
    "got {}; a subclass that overrides _predict or predict_proba must define _map(), too"
)


def exported_map(calibrator: Any) -> Map:
    """Return the map of a fitted calibrator, or raise TypeError if the map cannot be exported."""
    states_map = getattr(type(calibrator), "_states_map", None)
    if isinstance(calibrator, type) or states_map is None or not states_map():
        is_class = isinstance(calibrator, type)
        cls = calibrator if is_class else type(calibrator)
        raise TypeError(_NO_MAP.format(f"{'the class ' if is_class else ''}{cls.__module__}.{cls.__name__}"))
    check_is_fitted(calibrator)
    root: Map = calibrator._map()
    root.check_exportable()
    return root


def leaves(root: Map) -> Iterator[Map]:
    """Yield `root` itself if it has no parts, otherwise the leaves of each of its parts, recursively."""
    if not root.parts:
        yield root
    for part in root.parts:
        yield from leaves(part)


def group_names(root: Map) -> NDArray[Any] | None:
    """Sorted names of the groups by which rows are sliced, or None if rows are not sliced by group."""
    if root.slices is not None and root.slices.groups is not None:
        return root.slices.groups
    return next((names for part in root.parts if (names := group_names(part)) is not None), None)


def theta_by_class(sliced: Temperature | Vector | Platt) -> Float:
    """Parameters with one row per class or per group, or a single row if there are no slices.

    If the slices are bundles of classes, every class gets the row of its bundle.
    """
    bundles = None if sliced.slices is None else sliced.slices.bundles
    return sliced.theta if bundles is None else sliced.theta[bundles]


def logits_from(p: FloatArray, guess: CodeArray) -> FloatArray:
    """Logits for the next step of a chain: the logarithm of `p` (n, K), with `guess` (n,) as the argmax.

    Probabilities below the smallest positive normal number of the dtype, such as zeros, are raised to it.
    """
    out = np.empty_like(p)

    def take_logarithm(start: int, stop: int) -> None:
        rows = slice(start, stop)
        np.log(np.maximum(p[rows], np.finfo(p.dtype).tiny), out=out[rows])
        keep_decision(out[rows], guess[rows])  # rounding may have caused a tie

    over_blocks(take_logarithm, *p.shape)
    return out


def rows_by_slice(ids: CodeArray, n_slices: int) -> list[IntArray]:
    """Row numbers of each slice, in increasing order; rows whose id is ``n_slices`` or more are left out."""
    order = np.argsort(ids, kind="stable")
    return np.split(order, np.searchsorted(ids[order], np.arange(1, n_slices + 1)))[:n_slices]


def _slice_ids(slices: Slices | None, guess: CodeArray, groups: ArrayLike | None) -> CodeArray:
    return np.zeros(len(guess), np.int64) if slices is None else slices.assign(guess, groups)


def _has_external(root: Map) -> bool:
    """Whether a map is or contains an `External` map, whose claim to preserve decisions is not trusted."""
    return any(isinstance(leaf, External) for leaf in leaves(root))


def _require(is_valid: bool, name: str, rule: str, values: Float) -> None:
    if not is_valid:
        raise ValueError(
            f"{name} must {rule}, got {np.array2string(values.ravel(), threshold=6)}; fit and save the "
            "calibrator again"
        )


def _is_fraction(values: Float) -> bool:
    return bool(values.size and ((values >= 0) & (values <= 1)).all())


def _is_increasing(values: Float) -> bool:
    return values.ndim == 1 and _is_fraction(values) and bool((np.diff(values) >= 0).all())
