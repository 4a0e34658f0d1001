"""Slices: the sets of rows that share parameters, formed by predicted class, group or bundle of classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hetcal._coerce import as_array
from hetcal._numeric.passes import gap_sums
from hetcal._numeric.rows import code_type, decide, prepare
from hetcal._numeric.source import Source
from hetcal._typing import CodeArray, Float, IntArray
from hetcal._validate import (
    CONVERT_PROBS,
    check_groups,
    check_labelled,
    check_logits,
    check_weights,
    choose,
)

__all__ = [
    "Slices",
    "bundle_by_sums",
    "bundle_classes",
    "by_groups",
    "by_predicted_class",
    "learn_slices",
    "slice_source",
]


@dataclass(frozen=True)
class Slices:
    """Rule that assigns rows to slices.

    Attributes
    ----------
    n_slices : int
    groups : sorted group names if the slices are groups, otherwise None
    bundles : (K,) bundle of every class if the slices are bundles, otherwise None
    """

    n_slices: int
    groups: NDArray[Any] | None = None
    bundles: IntArray | None = None

    def assign(self, guess: CodeArray, groups: ArrayLike | None) -> CodeArray:
        """Slice of every row (n,), from its predicted class or its validated group."""
        if self.groups is not None:
            if groups is None:
                raise ValueError(
                    "groups must be given, since fit was called with them, got None; pass the group of "
                    "every row"
                )
            ids = _look_up(np.asarray(groups), self.groups)
            return ids.astype(code_type(self.n_slices))
        if groups is not None:
            raise ValueError(
                "groups must be left out, since fit was called without them; call fit with groups to "
                "calibrate by group"
            )
        return guess if self.bundles is None else self.bundles.astype(code_type(self.n_slices))[guess]

    def name(self, k: int) -> str:
        """Name of slice `k` for messages."""
        if self.groups is not None:
            return f"group {self.groups[k].item()!r}"
        if self.bundles is not None:
            return f"bundle {k}"
        return f"class {k}"


def by_predicted_class(logits: ArrayLike) -> IntArray:
    """Predicted class of every row (n,); ties go to the lowest index.

    Examples
    --------
    >>> by_predicted_class([[0.1, 3.0], [2.0, 2.0]])
    array([1, 0])
    """
    return decide(check_logits(logits, probs_remedy=CONVERT_PROBS)).astype(np.int64)


def by_groups(groups: ArrayLike) -> tuple[IntArray, NDArray[Any]]:
    """Slice of every row (n,), and the sorted group names of the slices.

    Examples
    --------
    >>> by_groups(["b", "a", "b"])
    (array([1, 0, 1]), array(['a', 'b'], dtype='<U1'))
    """
    array = as_array(groups, "groups")
    names, ids = np.unique(check_groups(array, n_rows=array.size), return_inverse=True)
    return ids.astype(np.int64), names


def bundle_classes(
    logits: ArrayLike,
    labels: ArrayLike,
    n_bundles: int,
    by: Literal["gap", "size"] = "gap",
    *,
    sample_weight: ArrayLike | None = None,
    class_names: ArrayLike | None = None,
) -> IntArray:
    """Assign every class to a bundle of similar classes; the bundles have about equal numbers of rows.

    The classes are sorted by their signed gap or by their size. The signed gap is the mean confidence minus
    the accuracy over the rows predicted as the class, and the size is the number of these rows. The sorted
    classes are then cut into bundles with about the same number of rows. With `sample_weight`, the total
    weight counts instead of the number of rows. A class that is never predicted has size 0 and the gap over
    all rows. The result (K,) contains the number of each class's bundle.

    Parameters
    ----------
    logits : (n, K) unnormalised scores
    labels : (n,) true classes, as integers or class names
    n_bundles : number of bundles, 1..K
    by : ``"gap"`` or ``"size"``
        Property by which the classes are sorted.
    sample_weight : (n,) weights, optional
    class_names : K strings; by default the column names of a data frame

    Examples
    --------
    >>> z = np.repeat(np.eye(4) * 4.0, 5, axis=0)
    >>> y = np.repeat([0, 1, 2, 0], 5)
    >>> bundle_classes(z, y, 2)
    array([0, 0, 1, 1])
    """
    z, y, _ = check_labelled(logits, labels, class_names)
    w = check_weights(sample_weight, n_rows=len(z))
    return bundle_by_sums(*gap_sums(prepare(z, y, w)), n_bundles, by)


def bundle_by_sums(
    rows: Float,
    error: Float,
    n_bundles: Any,
    by: Literal["gap", "size"] = "gap",
    *,
    name: str = "n_bundles",
) -> IntArray:
    """Form the bundles of :func:`bundle_classes` from sums over the rows predicted as each class.

    `rows` (K,) contains the numbers of rows, or their total weights. `error` (K,) contains the sums of
    confidence minus correctness, weighted if the rows have weights. `name` is the name of `n_bundles` in
    error messages.
    """
    n_classes = len(rows)
    if not isinstance(n_bundles, int | np.integer) or not 1 <= n_bundles <= n_classes:
        raise ValueError(
            f"{name} must be an integer in 1..{n_classes} (at most one per class), got {n_bundles!r}; pass a "
            "number in this range"
        )
    order = np.argsort(choose(_STATISTICS, by, "by")(rows, error), kind="stable")
    bundles = np.empty(n_classes, np.int64)
    bundles[order] = _cut(rows[order], int(n_bundles))
    return bundles


def learn_slices(n_classes: int, group_names: ArrayLike | None, bundles: IntArray | None) -> Slices:
    """Return the slices of a fit: groups or bundles if they are given, otherwise predicted classes."""
    if group_names is not None:
        if bundles is not None:
            raise ValueError(
                "groups must be left out if bundles are set, got both; slice the rows by groups or by bundles"
            )
        names = np.unique(np.asarray(group_names))
        return Slices(len(names), groups=names)
    if bundles is not None:
        return Slices(int(bundles.max()) + 1, bundles=bundles)
    return Slices(n_classes)


def slice_source(source: Source, bundles: int | ArrayLike | None = None) -> tuple[Slices, Source]:
    """Return the slices for a fit to `source`, and the source divided into these slices.

    `bundles` is a number of bundles, or the bundle of every class.
    """
    table = None if bundles is None else _bundle_table(source, bundles)
    slices = learn_slices(source.n_classes, source.group_names(), table)
    return slices, source.slice_by(_SlicesOfFit(slices), slices.n_slices)


@dataclass(frozen=True)
class _SlicesOfFit:
    """Function that assigns rows to slices during a fit; it ignores groups unless the slices are groups."""

    slices: Slices

    def __call__(self, guess: CodeArray, groups: NDArray[Any] | None) -> CodeArray:
        return self.slices.assign(guess, None if self.slices.groups is None else groups)


def _bundle_table(source: Source, bundles: int | ArrayLike) -> IntArray:
    table = np.asarray(bundles)
    if table.ndim == 0 and table.dtype.kind in "iu":
        return bundle_by_sums(*source.gap_sums(), table.item(), name="bundles")
    if table.shape != (source.n_classes,) or table.dtype.kind not in "iu" or table.min() < 0:
        raise ValueError(
            "bundles must be a number of bundles, or one non-negative integer per class "
            f"({source.n_classes}), got {bundles!r}; pass the number of bundles to let hetcal form them"
        )
    return np.unique(table, return_inverse=True)[1].astype(np.int64)


def _look_up(groups: NDArray[Any], known: NDArray[Any]) -> IntArray:
    """Position of every group in the sorted array `known`."""
    if (groups.dtype.kind == "U") != (known.dtype.kind == "U"):
        kinds = ("strings", "integers") if known.dtype.kind == "U" else ("integers", "strings")
        raise TypeError(f"groups must be {kinds[0]}, as in fit, got {kinds[1]}; use one type for both")
    ids = np.minimum(np.searchsorted(known, groups), len(known) - 1)
    unknown = known[ids] != groups
    if unknown.any():
        row = int(np.argmax(unknown))
        seen = ", ".join(repr(g.item()) for g in known[:5]) + (", …" if len(known) > 5 else "")
        raise ValueError(
            f"groups must be among those seen in fit ({seen}), got {groups[row].item()!r} at row {row}; "
            "fit again with rows of that group"
        )
    return ids.astype(np.int64)


def _cut(rows: Float, n_bundles: int) -> IntArray:
    """Cut the sorted classes into bundles of successive classes; return the bundle numbers (K,).

    `rows` (K,) contains the number of rows of every class, or their total weight. If all rows were cut into
    bundles of equal size, the middle row of a class would be in one of them. The class is assigned to this
    bundle, with three exceptions that leave no bundle empty. The first class is in bundle 0. The bundle
    number increases by at most one from class to class. If the number of remaining classes equals the number
    of empty bundles, each of these classes gets a bundle of its own.
    """
    middle = np.cumsum(rows) - rows / 2
    preferred = np.minimum((middle * n_bundles / rows.sum()).astype(np.int64), n_bundles - 1)
    bundles = np.zeros(len(rows), np.int64)
    for i in range(1, len(rows)):
        previous = int(bundles[i - 1])
        next_bundle = min(int(preferred[i]), previous + 1)
        bundles[i] = max(previous, next_bundle, n_bundles - (len(rows) - i))
    return bundles


def _gaps(rows: Float, error: Float) -> Float:
    """Signed gap of every class, (K,). A class without rows gets the gap over all rows."""
    pooled = float(error.sum() / rows.sum())
    return np.asarray(np.divide(error, rows, out=np.full(len(rows), pooled), where=rows > 0))


def _sizes(rows: Float, error: Float) -> Float:  # noqa: ARG001
    return rows


_STATISTICS = {"gap": _gaps, "size": _sizes}
