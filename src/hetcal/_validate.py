"""Validation of user input: arrays, labels, weights, groups and scalar options.

Public functions call these checks once; internal functions rely on validated input. Some errors contain a
second phrase, such as "Unknown label type", that scikit-learn's estimator checks expect.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hetcal._coerce import as_array, is_text, name_number, real_array, refuse_non_finite, working_dtype
from hetcal._columns import (
    class_names_of,
    column_names,
    column_order,
    counted_names,
    labels_by_number,
    refuse_other_columns,
)
from hetcal._display import printable
from hetcal._numeric.device import TensorSource, chunk_rows, decide_tensor, is_tensor, working_type
from hetcal._numeric.probabilities import top_label
from hetcal._typing import FloatArray, IntArray

__all__ = [
    "CONVERT_PROBS",
    "GIVE_PREDICTED",
    "NAME_COLUMNS",
    "InvalidTypeError",
    "ProbabilitiesGiven",
    "as_generator",
    "check_bounds",
    "check_choice",
    "check_flag",
    "check_fold_groups",
    "check_gamma",
    "check_groups",
    "check_integer",
    "check_labelled",
    "check_labels",
    "check_logits",
    "check_metric_batch",
    "check_names",
    "check_number",
    "check_observed_labels",
    "check_probs",
    "check_ridge",
    "check_soft_labels",
    "check_tensors",
    "check_test_rows",
    "check_top_label",
    "check_transition",
    "check_weights",
    "choose",
    "is_soft",
    "one_of",
    "refuse_transition",
]

T = TypeVar("T")

# A transition matrix counts as singular if an entry of its inverse is larger than this in absolute value.
_MAX_INVERSE = 1e6
# Row sums of probabilities may differ from 1 by this much, to allow for rounding to float16.
_SUM_TOLERANCE = 5e-3
_MAX_INT64 = np.iinfo(np.int64).max
_MAX_EXACT_FLOAT = 2.0**53  # float64 represents every integer up to this one
_MANY_ROWS = 4  # with at least this many rows of logits, it is unlikely that each sums to nearly 1 by chance
_ENOUGH_ROWS = 20  # with at least this many rows, it is very unlikely that each sums to roughly 1 by chance
# Sums of roughly 1 differ from 1 by at most this, since probabilities are often rounded to two decimals.
_ROUNDED_TOLERANCE = 0.02
_MAX_WEIGHT = 1e100  # with larger weights, squares of weighted losses could overflow

# Ends of error messages, with advice for callers of the Python functions. Code that reads files passes other
# ends.
CONVERT_PROBS = "convert probabilities with hetcal.to_logits(probs)"
NAME_COLUMNS = "pass the names of the columns in order as class_names=, or"
GIVE_PREDICTED = (
    "for top-label confidences pass predicted= as well, for P(class 1) pass two columns, 1 - p and p"
)
_GIVE_PROBS = "pass probabilities as probs="
_BINARY = "for one score per row use hetcal.binary_logits(scores)"
_SOFTMAX = "apply a softmax or a calibrator's predict_proba first"


class ProbabilitiesGiven(ValueError):  # noqa: N818
    """Probabilities were passed where logits are expected."""


class InvalidTypeError(TypeError, ValueError):
    """An option has the wrong type. Callers can catch it as TypeError or as ValueError."""


def check_logits(
    logits: ArrayLike,
    *,
    n_classes: int | None = None,
    name: str = "logits",
    probs_remedy: str | None = _GIVE_PROBS,
    binary_remedy: str = _BINARY,
) -> FloatArray:
    """Validate logits.

    Parameters
    ----------
    logits : (n, K) array-like
        float16 and bfloat16 become float32. Other types except float32 become float64.
    n_classes : expected K, or None
    name : name of the argument in errors
    probs_remedy : end of the error for rows that look like probabilities, which are refused
        None skips this check, for example if the caller makes it once for all batches.
    binary_remedy : end of the error for one score per row

    Returns
    -------
    logits : (n, K) C-contiguous array of float32 or float64
    """
    refuse_other_columns(logits, name)
    z = real_array(logits, name)
    if z.ndim != 2:
        remedy = "Reshape your data to one row per sample"
        if z.ndim == 1:
            remedy += f", or {binary_remedy}"
        raise ValueError(f"{name} must be two-dimensional (n, K), got shape {z.shape}; {remedy}")
    n, k = z.shape
    if n == 0:
        raise ValueError(f"{name} must have at least one row, got 0 sample(s) (shape={z.shape})")
    if n_classes is not None and k != n_classes:
        raise ValueError(
            f"{name} must have {n_classes} columns, one per class as in fit, got {k} (X has {k} features, "
            f"but predict_proba is expecting {n_classes} features as input); pass one column per class"
        )
    if k < 2:
        raise ValueError(
            f"{name} must have at least 2 columns, one per class, got {k} feature(s) (shape={z.shape}) while "
            f"a minimum of 2 is required; {binary_remedy}"
        )
    z = np.ascontiguousarray(working_dtype(z))
    refuse_non_finite(z, name)
    if probs_remedy is not None and _looks_like_probs(z):
        raise ProbabilitiesGiven(
            f"{name} must be unnormalised scores, got rows in [0, 1] that sum to 1 (row 0: {_show(z[0])}); "
            f"{probs_remedy}"
        )
    return z


def check_labels(
    labels: ArrayLike | None,
    *,
    n_rows: int,
    n_classes: int | None,
    class_names: Any = None,
    table: Any = None,
    name: str = "labels",
    names_remedy: str = "",
) -> IntArray:
    """Validate labels.

    Parameters
    ----------
    labels : (n,) or (n, 1) array-like of integers, or of text if there are class names
    n_rows : expected n
    n_classes : labels must be less than this; None if unknown
    class_names : names in which text labels are looked up
    table : scores as passed by the user, or None
        If this is a data frame, labels may also be the names of its columns, or the numbers in these names
        (see :func:`hetcal._columns.labels_by_number`). If `table` is not None, `class_names` are validated.
    name : name of the argument in errors
    names_remedy : advice in the error for text labels without class names

    Returns
    -------
    labels : (n,) int64, non-negative, and less than `n_classes` if that is known
    """
    if table is not None:
        labels = labels_by_number(labels, column_names(table), class_names)
        class_names = _names_of(table, class_names, n_classes)
        names_remedy = names_remedy or NAME_COLUMNS
    if labels is None:
        raise ValueError(
            f"{name} must be given. Expected array-like (array or non-string sequence), got None"
        )
    y = as_array(labels, name)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1:
        raise ValueError(
            f"{name} must be one-dimensional, got shape {y.shape}; pass the class index of each row"
        )
    if y.shape[0] != n_rows:
        raise ValueError(
            f"{name} must have one entry per row ({n_rows}), got {y.shape[0]}; pass the class of each row"
        )
    if class_names is not None and is_text(y):
        return _look_up(y, class_names, name)
    y = _whole_numbers(y, n_classes, name, names_remedy)
    limit = _MAX_INT64 if n_classes is None else n_classes
    if y.size and (y.min() < 0 or y.max() >= limit):
        row = int(np.argmax((y < 0) | (y >= limit)))
        raise ValueError(
            f"{name} must lie in {_range(n_classes)}, got {y[row]} at row {row}; "
            "number the classes in the order of the columns"
        )
    return y.astype(np.int64, copy=False)


def is_soft(labels: Any) -> bool:
    """Whether labels have two dimensions and not exactly one column, as soft labels and counts do."""
    shape = getattr(labels, "shape", None)
    if shape is None and isinstance(labels, Sequence) and len(labels) and np.ndim(labels[0]) == 1:
        shape = len(labels), len(labels[0])
    return shape is not None and len(shape) == 2 and shape[1] != 1


def check_soft_labels(
    labels: ArrayLike, *, n_rows: int | None, n_classes: int, name: str = "labels"
) -> NDArray[np.float64]:
    """Validate soft labels or label counts (n, K), and return them divided by their row sums, in float64.

    `n_rows` is the expected number of rows, or None.
    """
    q = np.asarray(real_array(labels, name), np.float64)
    if q.ndim != 2 or q.shape[1] != n_classes or n_rows not in (None, len(q)):
        rows = "n" if n_rows is None else n_rows
        raise ValueError(
            f"{name} must have shape ({rows},) or, for soft labels and counts, ({rows}, {n_classes}), "
            f"got shape {q.shape}; pass one column per class, in the order of the logits or probabilities"
        )
    refuse_non_finite(q, name)
    with np.errstate(over="ignore"):
        total = q.sum(axis=1)
    refuse_non_finite(total, f"every row sum of {name}")
    bad = (q < 0).any(axis=1) | (total <= 0)
    if bad.any():
        row = int(np.argmax(bad))
        raise ValueError(
            f"{name} must not be negative, and must have a positive entry in every row, got {_show(q[row])} "
            f"at row {row}; correct negative entries, and drop rows without labels"
        )
    return np.asarray(q / total[:, None])


def check_observed_labels(
    labels: Any,
    transition: ArrayLike | None = None,
    *,
    n_rows: int,
    n_classes: int,
    class_names: Any = None,
    table: Any = None,
    name: str = "labels",
    names_remedy: str = "",
) -> tuple[NDArray[Any], NDArray[np.float64] | None]:
    """Validate hard or soft labels, and the transition matrix of noisy hard labels.

    Parameters
    ----------
    labels : (n,) hard labels as in :func:`check_labels`, or (n, K) soft labels or counts
        The columns of a data frame of soft labels are put in the order of the class names.
    transition : as in :func:`check_transition`
    n_rows, n_classes, class_names, table, name, names_remedy : as in :func:`check_labels`

    Returns
    -------
    labels : (n,) int64, or (n, K) float64 with rows that sum to 1
    transition : (K, K) float64, or None
    """
    if not is_soft(labels):
        y = check_labels(
            labels, n_rows=n_rows, n_classes=n_classes, class_names=class_names, table=table, name=name,
            names_remedy=names_remedy,
        )  # fmt: skip
        names = class_names if table is None else _names_of(table, class_names, n_classes)
        return y, check_transition(transition, n_classes, names)
    if transition is not None:
        raise ValueError(
            f"transition must be left out for soft labels, got both; pass one class per row as {name}, or "
            "leave out transition"
        )
    q = check_soft_labels(labels, n_rows=n_rows, n_classes=n_classes, name=name)
    names = class_names if table is None else _names_of(table, class_names, n_classes)
    order = _soft_label_order(column_names(labels), names, name)
    return (q if order is None else q[:, order]), None


def refuse_transition(transition: Any, reason: str) -> None:
    """Raise an error if label noise is passed where it cannot be taken into account."""
    if transition is not None:
        raise ValueError(f"transition must be left out {reason}")


def _soft_label_order(
    columns: Sequence[str] | None, class_names: Sequence[str] | None, name: str
) -> NDArray[np.int64] | None:
    """For every class, the position of its column of soft labels; None if the columns need no reordering."""
    if columns is None:
        return None
    own = class_names_of(columns)
    counted = [str(k) for k in range(len(own))]
    names = counted if class_names is None else [str(text) for text in class_names]
    if own == names:
        return None
    if sorted(own) == sorted(names) and len(set(own)) == len(own):
        return np.array([own.index(text) for text in names], np.int64)
    if class_names is None or own == counted:
        return None
    raise ValueError(
        f"{name} must have the columns {', '.join(map(printable, names[:9]))}, got "
        f"{', '.join(map(printable, own[:9]))}; rename the columns, or pass an array"
    )


def check_transition(
    transition: ArrayLike | None,
    n_classes: int,
    class_names: Sequence[str] | None = None,
    *,
    name: str = "transition",
) -> NDArray[np.float64] | None:
    """Validate label noise and return P(observed label | true label), (K, K) float64. None stays None.

    Parameters
    ----------
    transition : (K, K) matrix, (K,) noise rates, or one noise rate
        The noise rate of a class is the probability that its label is replaced by one drawn uniformly from
        all K classes.
    class_names : K strings, or None if unknown
        The rows and columns of a data frame, and the index of a Series, must be in this order or be numbered
        0, 1, 2, … in order.
    """
    if transition is None:
        return None
    columns = column_names(transition)
    if columns is not None:
        _check_names_of_transition(transition, columns, class_names, name)
    t = np.asarray(real_array(transition, name), np.float64)
    _check_names_of_estimate(transition, class_names, name)
    if t.shape in ((), (n_classes,)):
        _check_names_of_rates(transition, class_names, name)
        return _refuse_singular(_uniform_noise(np.broadcast_to(t, n_classes), name), name)
    if t.shape != (n_classes, n_classes):
        raise ValueError(
            f"{name} must have shape ({n_classes}, {n_classes}), or ({n_classes},) for noise rates by class, "
            f"or be a single noise rate, got shape {t.shape}; entry [i, j] of a matrix is the probability "
            "that a label of class i is recorded as j"
        )
    off = ~((t >= 0).all(axis=1) & (np.abs(t.sum(axis=1) - 1) <= _SUM_TOLERANCE))
    if off.any():
        row = int(np.argmax(off))
        raise ValueError(
            f"{name} must have rows of probabilities that sum to 1, got {_show(t[row])} with sum "
            f"{t[row].sum():.6g} in row {row}; pass probabilities, one row per true class"
        )
    t = t / t.sum(axis=1, keepdims=True)
    others = t.copy()
    np.fill_diagonal(others, -np.inf)
    k = int(np.argmin(np.diag(t) - others.max(axis=0)))
    if not t[k, k] > others[:, k].max():
        j = int(np.argmax(others[:, k]))
        raise ValueError(
            f"{name} must have the largest entry of every column on the diagonal, got {t[k, k]:.4g} for true "
            f"class {k} and {t[j, k]:.4g} for true class {j} in column {k}; check that rows are true classes "
            "and that every label is more probable for its own class than for any other"
        )
    return _refuse_singular(t, name)


def _refuse_singular(t: NDArray[np.float64], name: str) -> NDArray[np.float64]:
    """Return a transition matrix, or raise an error if it is singular or nearly so.

    With a singular matrix, the distribution of the observed labels does not determine that of the true ones.
    """
    largest = np.inf
    with contextlib.suppress(np.linalg.LinAlgError):
        largest = float(np.abs(np.linalg.inv(t)).max())
    if not largest <= _MAX_INVERSE:
        raise ValueError(
            f"{name} must be invertible, got a matrix whose inverse has the largest entry {largest:.3g}; "
            "some classes cannot be distinguished by such labels: merge them, or collect better labels"
        )
    return t


def _check_names_of_rates(rates: Any, class_names: Sequence[str] | None, name: str) -> None:
    """Raise an error if the noise rates in a pandas Series are not in the order of the classes."""
    index = getattr(rates, "index", None)
    if index is None or callable(index):
        return
    given = [str(label) for label in index]
    expected = _expected_names(class_names_of(given), class_names)
    if class_names_of(given) != expected and given != counted_names(len(given)):
        order, found = (printable(", ".join(labels[:9])) for labels in (expected, given))
        raise ValueError(
            f"{name} must have its index in the order of the classes, {order}, got {found}; "
            "reorder it, or pass an array"
        )


def _check_names_of_estimate(estimate: Any, class_names: Sequence[str] | None, name: str) -> None:
    """Raise an error if the transition was estimated for other classes, or for another order of the classes.

    There is no error if the names of the classes are unknown or "0", "1", … in order.
    """
    given = getattr(estimate, "class_names", None)
    if not isinstance(given, tuple):  # for example, a column `class_names` of a data frame
        return
    if class_names is None or list(given) in (list(class_names), counted_names(len(given))):
        return
    if list(class_names) == counted_names(len(class_names)):
        return
    order, found = (printable(", ".join(list(labels)[:9])) for labels in (class_names, given))
    raise ValueError(
        f"{name} must be estimated for the same classes as the scores, in the order {order}, got {found}; "
        "estimate it again with the columns in the required order"
    )


def _expected_names(given: list[str], class_names: Sequence[str] | None) -> list[str]:
    """Return the order that the names `given` must have.

    It is that of `class_names`. If these are None, the numbers "0", "1", … must be in order, and other names
    may have any order.
    """
    if class_names is not None:
        return list(class_names)
    positions = counted_names(len(given))
    return positions if sorted(given) == sorted(positions) else given


def _check_names_of_transition(
    transition: Any, columns: Sequence[str], class_names: Sequence[str] | None, name: str
) -> None:
    """Raise an error if the rows or columns of a data frame are not in the order of the classes.

    Rows or columns that are numbered 0, 1, 2, … in order are accepted.
    """
    index = getattr(transition, "index", None)
    rows = list(columns) if index is None or callable(index) else [str(label) for label in index]
    positions = counted_names(len(columns))
    names = class_names_of(columns)
    expected = _expected_names(names, class_names)
    if names == positions and rows == positions:
        return
    row_names = positions if rows == positions else class_names_of(rows)
    for kind, found in (("columns", names), ("rows", row_names)):
        if found not in (expected, positions):
            order, given = (printable(", ".join(labels[:9])) for labels in (expected, found))
            raise ValueError(
                f"{name} must have its {kind} in the order of the classes, {order}, got {given}; "
                "reorder or rename them"
            )


def _uniform_noise(rates: NDArray[np.float64], name: str) -> NDArray[np.float64]:
    """Transition matrix of labels that are redrawn uniformly with a probability that depends on the class."""
    bad = ~((rates >= 0) & (rates < 1))
    if bad.any():
        k = int(np.argmax(bad))
        raise ValueError(
            f"{name} must contain noise rates in [0, 1), got {rates[k]} for class {k}; "
            "pass the fraction of the labels that were replaced by random ones; with a rate of 1, labels "
            "would contain no information"
        )
    n_classes = len(rates)
    return np.diag(1 - rates) + rates[:, None] / n_classes


def check_labelled(
    logits: Any, labels: Any, class_names: Any = None
) -> tuple[FloatArray, IntArray, list[str] | None]:
    """Validate and return logits (n, K), labels (n,) and class names, which are None if unknown."""
    z = check_logits(logits, probs_remedy=CONVERT_PROBS)
    y = check_labels(labels, n_rows=len(z), n_classes=z.shape[1], class_names=class_names, table=logits)
    return z, y, _names_of(logits, class_names, z.shape[1])


def check_test_rows(
    test_logits: Any, test_labels: Any, logits: Any, class_names: Any, n_classes: int
) -> tuple[FloatArray, IntArray]:
    """Validate and return the logits and labels of test rows.

    If `class_names` is None, the columns of `test_logits` are put in the order of those of `logits` by name;
    see :func:`hetcal._columns.column_order`.
    """
    z = check_logits(test_logits, n_classes=n_classes, name="test_logits", probs_remedy=CONVERT_PROBS)
    own_names = _names_of(test_logits, None, n_classes)
    y = check_labels(
        test_labels,
        n_rows=len(z),
        n_classes=n_classes,
        class_names=class_names,
        table=logits if own_names is None else test_logits,
        name="test_labels",
    )
    order = None
    if class_names is None:
        order = column_order(_names_of(logits, None, n_classes), own_names, "test_logits")
    return (z, y) if order is None else (np.ascontiguousarray(z[:, order]), np.argsort(order)[y])


def _names_of(table: Any, class_names: Any, n_classes: int | None) -> list[str] | None:
    """Validated `class_names`, or else the class names from the columns of a table; None if unknown."""
    if class_names is not None:
        n_names = np.size(np.asarray(class_names, dtype=object))
        return check_names(class_names, n_names if n_classes is None else n_classes)
    columns = column_names(table)
    return None if columns is None else class_names_of(columns)


def check_weights(
    sample_weight: ArrayLike | None,
    *,
    n_rows: int,
    name: str = "sample_weight",
    allow_all_zero: bool = False,
) -> NDArray[np.float64] | None:
    """Validate weights and return them as float64 of shape (n,). None stays None.

    A scalar is repeated for all rows. Weights must be non-negative and at most 1e100. At least one must be
    positive, unless `allow_all_zero` is true, as for one of several batches.
    """
    if sample_weight is None:
        return None
    w = np.asarray(real_array(sample_weight, name), dtype=np.float64)
    if w.ndim == 0:
        w = np.full(n_rows, float(w))
    if w.ndim != 1:
        raise ValueError(f"{name} must be one-dimensional, got shape {w.shape}; pass the weight of each row")
    if w.shape[0] != n_rows:
        raise ValueError(
            f"{name} must have one entry per row ({n_rows}), got {w.shape[0]}; pass the weight of each row"
        )
    bad = ~np.isfinite(w) | (w < 0)
    if bad.any():
        row = int(np.argmax(bad))
        raise ValueError(
            f"{name} must be finite and not negative, got {name_number(w[row])} at row {row}; "
            "drop the row or correct its weight"
        )
    if w.size and w.max() > _MAX_WEIGHT:
        row = int(np.argmax(w))
        raise ValueError(
            f"{name} must be at most {_MAX_WEIGHT:g}, got {name_number(w[row])} at row {row}; "
            "divide all weights by a common number"
        )
    if not allow_all_zero and not w.any():
        raise ValueError(
            f"{name} must have a positive entry, got only zeros; leave it out to weight all rows equally"
        )
    return w


def check_groups(groups: ArrayLike, *, n_rows: int, name: str = "groups") -> NDArray[Any]:
    """Validate group names: one integer or string per row.

    Whole numbers that are stored as floats are converted to integers, and bytes to strings.
    """
    g = as_array(groups, name)
    if g.ndim != 1 or g.shape[0] != n_rows:
        raise ValueError(
            f"{name} must be one-dimensional with one entry per row ({n_rows}), got shape {g.shape}; "
            "pass the group of each row"
        )
    if g.dtype.kind == "O":
        g = _plain_groups(g, name)
    if g.dtype.kind == "f":
        if not np.isfinite(g).all():
            row = int(np.argmax(~np.isfinite(g)))
            raise ValueError(
                f"{name} must be finite, got {g[row]} at row {row}; give such rows a group of their own"
            )
        is_invalid = (g != np.floor(g)) | (np.abs(g) > _MAX_EXACT_FLOAT)
        if is_invalid.any():
            row = int(np.argmax(is_invalid))
            raise ValueError(
                f"{name} must be strings, or integers (up to 2**53 if stored as floats), got {g[row]} at row "
                f"{row}; bin the numbers first, or convert them to strings"
            )
        g = g.astype(np.int64)
    if g.dtype.kind not in "iubUS":
        raise TypeError(f"{name} must be integers or strings, got dtype {g.dtype}; convert them to strings")
    return g.astype(str) if g.dtype.kind == "S" else g


def one_of(logits: Any, probs: Any) -> tuple[Any, str]:
    """Return the argument that is not None, and its name; none or both raise an error."""
    if probs is None:
        if logits is None:
            raise ValueError("logits must be given, got None; pass logits, or probabilities as probs=")
        return logits, "logits"
    if logits is not None:
        raise ValueError("probs must be left out if logits are passed, got both; pass one of them")
    return probs, "probs"


def check_probs(
    probs: ArrayLike,
    *,
    name: str = "probs",
    shape_remedy: str = "pass a column for each class",
    scores_remedy: str = _SOFTMAX,
) -> FloatArray:
    """Validate probabilities of shape (n, K): in [0, 1], with rows that sum to 1 up to rounding.

    `shape_remedy` ends the error for a wrong shape, `scores_remedy` the error for entries outside [0, 1].
    """
    refuse_other_columns(probs, name)
    p = working_dtype(real_array(probs, name))
    if p.ndim != 2 or p.shape[1] < 2:
        raise ValueError(
            f"{name} must be two-dimensional (n, K) with K at least 2, got shape {p.shape}; {shape_remedy}"
        )
    if p.shape[0] == 0:
        raise ValueError(f"{name} must have at least one row, got shape {p.shape}")
    # Fast path: if no entry is negative and every row sum is within the tolerance, even with rounding errors,
    # all checks below would succeed.
    with np.errstate(over="ignore", invalid="ignore"):
        deviation = p @ np.ones(p.shape[1], p.dtype)
        np.abs(np.subtract(deviation, 1, out=deviation), out=deviation)
        if deviation.max() <= _SUM_TOLERANCE - p.shape[1] * np.finfo(p.dtype).eps and p.min() >= 0:
            return p
    refuse_non_finite(p, name)
    if p.min() < 0 or p.max() > 1 + _SUM_TOLERANCE:
        row = int(np.argmax((p < 0).any(axis=1) | (p > 1 + _SUM_TOLERANCE).any(axis=1)))
        raise ValueError(f"{name} must lie in [0, 1], got {_show(p[row])} at row {row}; {scores_remedy}")
    is_off = np.abs(p.sum(axis=1, dtype=np.float64) - 1) > _SUM_TOLERANCE
    if is_off.any():
        row = int(np.argmax(is_off))
        raise ValueError(
            f"{name} must sum to 1 in every row, got {p[row].sum():.6g} at row {row}; normalise the rows"
        )
    return p


def check_top_label(
    probs: ArrayLike,
    labels: ArrayLike,
    predicted: ArrayLike | None = None,
    class_names: ArrayLike | None = None,
) -> tuple[FloatArray, IntArray, IntArray]:
    """Validate predictions and labels, and return ``(confidence, predicted, labels)``, each of shape (n,).

    `probs` are probabilities (n, K) or, if `predicted` is passed, confidences (n,) in the predicted classes.
    """
    if predicted is None:
        p = check_probs(probs, shape_remedy=GIVE_PREDICTED)
        confidence, guess = top_label(p)
        y = check_labels(labels, n_rows=len(p), n_classes=p.shape[1], class_names=class_names, table=probs)
        return confidence, guess, y
    confidence = working_dtype(real_array(probs, "probs"))
    if confidence.ndim != 1:
        raise ValueError(
            f"probs must be confidences of shape (n,) if predicted is passed, got shape {confidence.shape}; "
            "leave predicted out for probabilities (n, K)"
        )
    if confidence.size == 0:
        raise ValueError("probs must have at least one row, got 0")
    refuse_non_finite(confidence, "probs")
    if confidence.min() < 0 or confidence.max() > 1:
        row = int(np.argmax((confidence < 0) | (confidence > 1)))
        raise ValueError(f"probs must lie in [0, 1], got {confidence[row]} at row {row}; {_SOFTMAX}")
    options: dict[str, Any] = {"n_rows": len(confidence), "n_classes": None, "class_names": class_names}
    guess = check_labels(predicted, **options, table=confidence, name="predicted")
    return confidence, guess, check_labels(labels, **options, table=confidence)


def check_names(class_names: ArrayLike | None, n_classes: int, *, name: str = "class_names") -> list[str]:
    """Return K class names as strings: 1.0 becomes "1", and None gives the names "0", "1", ….

    Another number of names than K raises an error.
    """
    if class_names is None:
        return [str(i) for i in range(n_classes)]
    values = np.asarray(class_names, dtype=object).ravel().tolist()
    names = [str(int(x)) if isinstance(x, float) and x.is_integer() else str(x) for x in values]
    if len(names) != n_classes:
        raise ValueError(
            f"{name} must have one entry per class ({n_classes}), got {len(names)}; "
            "list every class once, in the order of the columns"
        )
    return names


def as_generator(rng: np.random.Generator | int, *, name: str = "rng") -> np.random.Generator:
    """Return a generator unchanged, or a new one from a seed."""
    if isinstance(rng, np.random.Generator):
        return rng
    if isinstance(rng, int | np.integer) and not isinstance(rng, bool) and rng >= 0:
        return np.random.default_rng(int(rng))
    raise TypeError(f"{name} must be a numpy.random.Generator or a non-negative integer seed, got {rng!r}")


def _sum_tolerance(n_rows: int, *, is_double: bool) -> float:
    """Largest difference between row sums and 1 for which `n_rows` rows are taken for probabilities.

    `_looks_like_probs` uses a smaller limit for fewer than four rows.
    """
    if n_rows >= _ENOUGH_ROWS:
        return _ROUNDED_TOLERANCE
    return 1e-6 if is_double else 1e-3


def _looks_like_probs(z: FloatArray) -> bool:
    # Many rows that sum to nearly 1 are taken for probabilities, which may have been rounded. A few rows of
    # logits, such as the single row (0, 0.9995), can have such sums by chance. They are taken for
    # probabilities only if their sums are as close to 1 as those of a softmax.
    tolerance = _sum_tolerance(len(z), is_double=z.dtype == np.float64)
    if len(z) < _MANY_ROWS:
        tolerance = 8 * float(np.finfo(z.dtype).eps)

    def normalised(rows: FloatArray) -> bool:
        inside = rows.min() >= 0 and rows.max() <= 1
        return bool(inside and np.all(np.abs(rows.sum(axis=1) - 1) <= tolerance))

    return normalised(z[:64]) and normalised(z)


def _whole_numbers(y: NDArray[Any], n_classes: int | None, name: str, remedy: str) -> NDArray[Any]:
    if y.dtype.kind == "O" and all(isinstance(v, int | float | np.integer | np.floating) for v in y):
        y = y.astype(np.float64)
    if y.dtype.kind in "OSU":
        numeric = (int, float, np.integer, np.floating)
        row = next(i for i, v in enumerate(y) if not isinstance(v, numeric))
        raise TypeError(
            f"{name} must be integers {_range(n_classes)}, got {_plain(y[row])!r} at row {row}; "
            f"{remedy}{' ' if remedy else ''}number the classes in the order of the columns"
        )
    if y.dtype.kind == "f":
        bad = ~np.isfinite(y) | (y != np.floor(y))
        if bad.any():
            row = int(np.argmax(bad))
            raise ValueError(
                f"{name} must be integers {_range(n_classes)}, got {name_number(y[row])} at row {row} "
                "(Unknown label type: continuous); drop the row or correct its label"
            )
    elif y.dtype.kind not in "iub":
        raise TypeError(
            f"{name} must be integers {_range(n_classes)}, got dtype {y.dtype}; "
            "number the classes in the order of the columns"
        )
    return y


def _look_up(y: NDArray[Any], class_names: Sequence[str], name: str) -> IntArray:
    """Positions of text labels among the class names."""
    positions = {text: k for k, text in enumerate(class_names)}
    if len(positions) < len(class_names):
        repeated = next(text for k, text in enumerate(class_names) if positions[text] != k)
        raise ValueError(
            f"class_names must be distinct if labels are text, got {repeated!r} twice; rename one"
        )
    values, inverse = np.unique(y.astype(str), return_inverse=True)
    unknown = [text for text in values.tolist() if text not in positions]
    if unknown:
        row = int(np.argmax(y.astype(str) == unknown[0]))
        known = ", ".join(map(printable, class_names[:9]))
        raise ValueError(
            f"{name} must be among class_names ({known}), got {unknown[0]!r} at row {row}; correct the label "
            "or drop the row"
        )
    codes = np.array([positions[text] for text in values.tolist()], np.int64)
    return np.asarray(codes[inverse])


def _range(n_classes: int | None) -> str:
    return "0, 1, 2, …" if n_classes is None else f"0..{n_classes - 1}"


def _plain_groups(g: NDArray[Any], name: str) -> NDArray[Any]:
    if all(isinstance(v, str) for v in g):
        return g.astype(str)
    if all(isinstance(v, int | np.integer) for v in g):
        return g.astype(np.int64)
    kind = str if isinstance(g[0], str) else (int, np.integer)
    row = next(i for i, v in enumerate(g) if not isinstance(v, kind))
    raise TypeError(
        f"{name} must be all integers or all strings, got {g[row]!r} at row {row}; "
        "convert all of them to strings"
    )


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _show(row: FloatArray) -> str:
    head = ", ".join(f"{v:.4g}" for v in row[:4])
    return f"[{head}{', …' if len(row) > 4 else ''}]"


def _message(name: str, rule: str, value: Any, remedy: str) -> str:
    return f"{name} must {rule}, got {value!r}{'; ' if remedy else ''}{remedy}"


def _integer_rule(minimum: int | None, maximum: int | None) -> str:
    if minimum is not None and maximum is not None:
        return f"an integer in {minimum}..{maximum}"
    if minimum == 1:
        return "a positive integer"
    limits = [f"of at least {minimum}"] if minimum is not None else []
    limits += [f"of at most {maximum}"] if maximum is not None else []
    return " ".join(["an integer", *limits])


def _number_rule(
    minimum: float | None, above: float | None, maximum: float | None, below: float | None, infinite: bool
) -> str:
    low, high = minimum if above is None else above, maximum if below is None else below
    if low is not None and high is not None:
        return f"lie in {'[' if above is None else '('}{low:g}, {high:g}{']' if below is None else ')'}"
    limits = [f"of at least {minimum:g}"] if minimum is not None else []
    limits += [f"above {above:g}"] if above is not None else []
    limits += [f"of at most {maximum:g}"] if maximum is not None else []
    limits += [f"below {below:g}"] if below is not None else []
    return " ".join(["be a number" if infinite else "be a finite number", *limits])


def choose(table: Mapping[str, T], key: str, name: str) -> T:
    """Return the entry `key` of a mapping of options; the error for an unknown key lists all keys."""
    return table[check_choice(key, name, table)]


def check_fold_groups(fold_groups: Any, n_rows: int, index: Any) -> IntArray | None:
    """Validate fold groups (n,) and return the group numbers of the rows `index`. None stays None.

    Cross-validation keeps the rows of a fold group in the same fold.
    """
    if fold_groups is None:
        return None
    names = check_groups(fold_groups, n_rows=n_rows, name="fold_groups")[index]
    numbers = np.unique(names, return_inverse=True)[1].astype(np.int64)
    if len(names) > 1 and not numbers.any():
        raise ValueError(
            f"fold_groups must contain at least two groups, got only {names[0].item()!r}; leave it out if no "
            "rows belong together"
        )
    return numbers


def check_integer(
    value: Any, name: str, *, minimum: int | None = None, maximum: int | None = None, remedy: str = ""
) -> int:
    """Return an integer of Python or NumPy as an int; floats and booleans are refused.

    `minimum` and `maximum` are inclusive. `remedy` ends the error.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise InvalidTypeError(_message(name, f"be {_integer_rule(minimum, maximum)}", value, remedy))
    if (minimum is not None and value < minimum) or (maximum is not None and value > maximum):
        raise ValueError(_message(name, f"be {_integer_rule(minimum, maximum)}", value, remedy))
    return int(value)


def check_number(
    value: Any,
    name: str,
    *,
    minimum: float | None = None,
    above: float | None = None,
    maximum: float | None = None,
    below: float | None = None,
    allow_infinite: bool = False,
    remedy: str = "",
) -> float:
    """Return a real number within limits; NaN, booleans and text are refused.

    `minimum` and `maximum` are inclusive, `above` and `below` exclusive. `remedy` ends the error.
    """
    rule = _number_rule(minimum, above, maximum, below, allow_infinite)
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise InvalidTypeError(_message(name, rule, value, remedy))
    valid = (
        not math.isnan(value)
        and (allow_infinite or not math.isinf(value))
        and (minimum is None or value >= minimum)
        and (above is None or value > above)
        and (maximum is None or value <= maximum)
        and (below is None or value < below)
    )
    if not valid:
        raise ValueError(_message(name, rule, value, remedy))
    return float(value)


def check_choice(value: Any, name: str, choices: Iterable[T], *, remedy: str = "") -> T:
    """Return the element of `choices` that equals `value`; the error lists all of them."""
    options = {choice: choice for choice in choices}
    try:
        return options[value]
    except (KeyError, TypeError):  # TypeError: the value is not hashable
        rule = f"be one of {', '.join(map(repr, options))}"
        raise ValueError(_message(name, rule, value, remedy)) from None


def check_flag(value: Any, name: str) -> bool:
    """Return True or False; other truthy or falsy values are refused."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return bool(value)


def check_bounds(bounds: Any, name: str = "alpha_bounds") -> tuple[float, float]:
    """Validate bounds, two positive finite numbers in ascending order, and return them as floats."""
    try:
        lower, upper = (float(b) for b in bounds)
    except (TypeError, ValueError):
        raise TypeError(
            f"{name} must be a pair of numbers (lower, upper), got {bounds!r}; pass, for example, (0.01, 100)"
        ) from None
    if not 0 < lower < upper < np.inf:
        raise ValueError(
            f"{name} must be positive, finite and ascending, got {bounds!r}; pass, for example, (0.01, 100)"
        )
    return lower, upper


def check_ridge(ridge: Any) -> float:
    """Validate a ridge, which is finite and non-negative, and return it as a float."""
    return check_number(ridge, "ridge", minimum=0)


def check_gamma(gamma: Any, name: str = "gamma") -> float:
    """Validate `gamma`, which is non-negative and may be infinite, and return it as a float."""
    remedy = "use inf to fit slices independently"
    return check_number(gamma, name, minimum=0, allow_infinite=True, remedy=remedy)


# -- Tensors on a device ---------------------------------------------------------------------------


def check_tensor_logits(logits: Any) -> tuple[Any, Any, Any]:
    """Validate logits on their device, under the same rules as :func:`check_logits`.

    Returns
    -------
    logits : contiguous floating-point tensor of shape (n, K)
    top, guess : maximum and predicted class of every row, (n,)
    """
    z = _tensor_shape(logits)
    top, guess, finite = decide_tensor(z)
    if not finite:
        _refuse_non_finite_tensor(z)
    if float(top.amax()) <= 1:  # otherwise the logits cannot be probabilities
        _refuse_prob_tensor(z)
    return z, top, guess


def check_tensors(
    logits: Any, labels: Any, sample_weight: Any = None, groups: Any = None, fold_groups: Any = None
) -> TensorSource:
    """Validate tensors on their device and return them as a `TensorSource`.

    The logits stay on the device; the check for probabilities copies at most 64 rows to host memory. Weights
    are scaled as in `normalise_weights`, and rows of weight zero are dropped.
    """
    z, top, guess = check_tensor_logits(logits)
    y, w = _tensor_labels(labels, z), _tensor_weights(sample_weight, z)
    used: Any = slice(None)
    if w is not None and not bool((w > 0).all()):
        positive = w > 0
        z, y, top, guess, w = (part[positive] for part in (z, y, top, guess, w))
        used = np.flatnonzero(positive.cpu().numpy())
    n = len(logits)
    g = None if groups is None else check_groups(as_array(groups, "groups"), n_rows=n)[used]
    return TensorSource(z, y, top, guess, w, groups=g, fold_groups=check_fold_groups(fold_groups, n, used))


def check_metric_batch(
    preds: Any, target: Any, *, n_classes: int, from_probs: bool, ignore_index: int | None, check_values: bool
) -> tuple[Any, Any]:
    """Validate a batch of a streaming metric on its device.

    Parameters
    ----------
    preds : tensor of shape (n, K, ...)
    target : integer tensor of shape (n, ...)
    n_classes : number of classes K
    from_probs : whether `preds` are probabilities instead of logits
    ignore_index : positions with this target are dropped; None drops none
    check_values : whether to check the values too, which makes the host wait for the device

    Returns
    -------
    preds, target : tensors of shape (m, K) and (m,), with one row per position that is not ignored
    """
    if not is_tensor(preds) or not is_tensor(target):
        types = f"{type(preds).__name__} and {type(target).__name__}"
        raise TypeError(f"preds and target must be tensors, got {types}; convert them with torch.as_tensor")
    if preds.ndim < 2 or preds.shape[1] != n_classes or not preds.is_floating_point():
        raise ValueError(
            f"preds must be floats of shape (n, {n_classes}) or (n, {n_classes}, ...), got {preds.dtype} of "
            f"shape {tuple(preds.shape)}; pass the scores of the {n_classes} classes along dimension 1"
        )
    shape = (preds.shape[0], *preds.shape[2:])
    if tuple(target.shape) != shape or target.is_floating_point() or target.is_complex():
        raise ValueError(
            f"target must be integers of shape {shape}, got {target.dtype} of shape {tuple(target.shape)}; "
            "pass one class index for each position of preds"
        )
    z = preds.detach().movedim(1, -1).reshape(-1, n_classes)
    y = target.detach().reshape(-1).to(preds.device).long()
    is_used = None if ignore_index is None else y != ignore_index
    if check_values and len(z):
        if not math.isfinite(z.sum()):  # the sum of finite entries may overflow, so check each row
            _refuse_non_finite_tensor(z, "preds")
        if from_probs:
            _refuse_unnormalised_tensor(z)
        else:
            _refuse_prob_tensor(z, "preds", "create the metric with from_probs=True")
        _refuse_unknown_targets(y, is_used, n_classes)
    return (z, y) if is_used is None else (z[is_used], y[is_used])


def _tensor_shape(logits: Any) -> Any:
    z = logits.detach()
    if z.ndim != 2 or z.shape[1] < 2 or not len(z):
        raise ValueError(
            "logits must be two-dimensional (n, K) with rows and at least 2 columns, "
            f"got shape {tuple(z.shape)}; pass one row per sample and one column per class"
        )
    if z.is_complex():
        raise ValueError(
            f"logits must be real, got {z.dtype} (Complex data not supported); take the real part"
        )
    return (z if z.is_floating_point() else z.double()).contiguous()


def _refuse_non_finite_tensor(z: Any, name: str = "logits") -> None:
    """If any entry is NaN or infinite, raise an error that names the first row with such an entry."""
    import torch

    for part in chunk_rows(z):
        bad = (~torch.isfinite(z[part])).any(dim=1)
        if bool(bad.any()):
            row = int(bad.to(torch.int8).argmax())
            values = z[part][row]
            value = name_number(float(values[~torch.isfinite(values)][0]))
            raise ValueError(
                f"{name} must be finite, got {value} at row {part.start + row}; "
                "drop the row or fix the model that produced it"
            )


def _refuse_prob_tensor(z: Any, name: str = "logits", remedy: str = _GIVE_PROBS) -> None:
    """Raise the error of `check_logits` if all rows look like probabilities."""
    try:
        check_logits(as_array(z[:64], name), name=name, probs_remedy=remedy)
    except ProbabilitiesGiven:
        tolerance = _sum_tolerance(len(z), is_double=z.element_size() == 8)
        inside = float(z.amin()) >= 0 and float(z.amax()) <= 1
        if inside and bool(((z.sum(dim=1) - 1).abs() <= tolerance).all()):
            raise


def _refuse_unnormalised_tensor(p: Any) -> None:
    """If a row is not a distribution over the classes, raise an error that names the first such row."""
    import torch

    for part in chunk_rows(p):
        rows = p[part].to(torch.promote_types(p.dtype, torch.float32))
        total = rows.sum(dim=1)
        bad = (rows < 0).any(dim=1) | ((total - 1).abs() > _SUM_TOLERANCE)
        if bool(bad.any()):
            row = int(bad.to(torch.int8).argmax())
            raise ValueError(
                "preds must be probabilities that sum to 1, got "
                f"{_show(as_array(rows[row], 'preds'))} at row {part.start + row}; "
                "create the metric with from_probs=False for logits"
            )


def _refuse_unknown_targets(y: Any, is_used: Any, n_classes: int) -> None:
    """If a target is neither a class nor ignored, raise an error that names the first such row."""
    import torch

    bad = (y < 0) | (y >= n_classes)
    bad = bad if is_used is None else bad & is_used
    if bool(bad.any()):
        row = int(bad.to(torch.int8).argmax())
        raise ValueError(
            f"target must lie in 0..{n_classes - 1}, got {int(y[row])} at row {row}; number the classes in "
            "the order of dimension 1 of preds, or create the metric with ignore_index for unlabelled rows"
        )


def _tensor_labels(labels: Any, z: Any) -> Any:
    import torch

    if labels is None:
        raise ValueError("labels must be given, got None; pass the true class of each row")
    y = labels.detach() if is_tensor(labels) else torch.as_tensor(as_array(labels, "labels"))
    if y.ndim != 1 or len(y) != len(z):
        raise ValueError(
            f"labels must have one entry per row of logits ({len(z)}), got shape {tuple(y.shape)}; pass the "
            "true class of each row"
        )
    if y.is_floating_point():
        bad = ~torch.isfinite(y) | (y != y.floor())
        if bool(bad.any()):
            row = int(bad.to(torch.int8).argmax())
            value = name_number(float(y[row]))
            raise ValueError(
                f"labels must be integers 0..{z.shape[1] - 1}, got {value} at row {row}; "
                "drop the row or correct its label"
            )
    y = y.to(z.device).long()
    if int(y.min()) < 0 or int(y.max()) >= z.shape[1]:
        row = int(((y < 0) | (y >= z.shape[1])).to(torch.int8).argmax())
        raise ValueError(
            f"labels must lie in 0..{z.shape[1] - 1}, got {int(y[row])} at row {row}; "
            "number the classes in the order of the logits' columns"
        )
    return y


def _tensor_weights(sample_weight: Any, z: Any) -> Any:
    import torch

    if sample_weight is None:
        return None
    weight = sample_weight if is_tensor(sample_weight) else as_array(sample_weight, "sample_weight")
    w = torch.as_tensor(weight).detach()
    if w.ndim != 1 or len(w) != len(z):
        raise ValueError(
            f"sample_weight must have one entry per row ({len(z)}), got shape {tuple(w.shape)}; "
            "pass the weight of each row"
        )
    w = w.to(z.device, torch.float64)
    bad = ~(torch.isfinite(w) & (w >= 0))
    if bool(bad.any()):
        row = int(bad.to(torch.int8).argmax())
        raise ValueError(
            f"sample_weight must be finite and not negative, got {name_number(float(w[row]))} at row {row}; "
            "drop the row or correct its weight"
        )
    if not bool(w.any()):
        raise ValueError(
            "sample_weight must have a positive entry, got only zeros; leave it out for equal weights"
        )
    w = w / w.max()
    return (w * (w.sum() / (w @ w))).to(working_type(z))  # same formula as in normalise_weights
