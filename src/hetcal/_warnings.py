"""The warnings of hetcal, and contexts that silence or collect them.

:func:`warnings.catch_warnings` can change filters that all threads share, so that threads undo each other's
changes. The contexts in this module use a context variable instead, whose value is separate in each thread.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from hetcal._typing import IntArray

__all__ = [
    "CalibrationWarning",
    "collect_warnings",
    "emit",
    "quiet",
    "warn_at_bound",
    "warn_confidences",
    "warn_fitted_rows",
    "warn_never_predicted",
    "warn_repeats",
    "warn_separable",
    "warn_thin_data",
]

_MAX_OVERLAP = 0.05  # largest `share` for which `warn_fitted_rows` does not warn
_OR_TIE = ", or set gamma (--gamma) to a finite number, which limits how far slices can differ"
_OR_RIDGE = ", or in Python set a ridge"
# One pair for each active context, the innermost first: a warning category, and the list that collects its
# messages. The list is None if the category is silenced.
_handlers: ContextVar[tuple[tuple[type[Warning], list[str] | None], ...]] = ContextVar(
    "hetcal_warnings", default=()
)


class CalibrationWarning(UserWarning):
    """The result is valid but may be unreliable, for example because there are too few rows."""


def emit(text: str, category: type[Warning] = CalibrationWarning) -> None:
    """Warn at the line that called hetcal, unless a context silences or collects this category.

    Every warning of hetcal goes through this function.
    """
    for handled, messages in _handlers.get():
        if issubclass(category, handled):
            if messages is not None:
                messages.append(text)
            return
    frame, level = inspect.currentframe(), 1
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("hetcal."):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)


@contextmanager
def quiet(category: type[Warning] = CalibrationWarning) -> Iterator[None]:
    """Silence hetcal's warnings of a category; those of other packages are unaffected."""
    with _handle(category, None):
        yield


@contextmanager
def collect_warnings(category: type[Warning] = CalibrationWarning) -> Iterator[list[str]]:
    """Collect hetcal's warnings of a category instead of emitting them; yield the list of their messages."""
    messages: list[str] = []
    with _handle(category, messages):
        yield messages


@contextmanager
def _handle(category: type[Warning], messages: list[str] | None) -> Iterator[None]:
    token = _handlers.set(((category, messages), *_handlers.get()))
    try:
        yield
    finally:
        _handlers.reset(token)


def warn_thin_data(y: Any, n_classes: int) -> None:
    """Warn if there are fewer rows than classes, or if there are several rows and all have the same label.

    `y` (n,) is an array or tensor of labels.
    """
    if len(y) < n_classes:
        emit(
            f"logits should have at least one row per class, got {len(y)} rows for {n_classes} classes: "
            "classes without rows cannot be calibrated separately; add rows"
        )
    if len(y) > 1 and y.min() == y.max():
        emit(
            f"labels should contain more than one class, got only class {int(y[0])}; "
            "add rows of other classes, about which the fit has no information"
        )


def warn_never_predicted(slices: IntArray, name: Callable[[int], str]) -> None:
    """Warn that slices without rows receive shared parameters instead of their own.

    A slice is a set of rows that share parameters, such as the rows of a predicted class. `slices` contains
    the numbers of the slices without rows, and `name` maps a number to the name of the slice. There is no
    warning if `slices` is empty.
    """
    if slices.size:
        emit(
            f"no row is predicted as {_list(slices, name)}: the shared parameters are used instead of "
            "separate ones"
        )


def warn_at_bound(
    slices: IntArray, name: Callable[[int], str], bounds: str, *, can_tie: bool = False
) -> None:
    """Warn about slices whose optimal inverse temperature is at one of its bounds.

    A slice is a set of rows that share parameters, such as the rows of a predicted class or of a group. If
    `can_tie` is True, the message recommends a finite `gamma`, which limits how far slices can differ.
    """
    if slices.size:
        remedy = f"fit on more rows{_OR_TIE if can_tie else ''}"
        emit(
            f"the optimal inverse temperature lies at one of the bounds {bounds} for {_list(slices, name)}, "
            f"usually because all predictions are correct or no better than chance; {remedy}"
        )


def warn_confidences() -> None:
    """Warn that one probability per row is probably the confidence of the prediction, not P(class 1)."""
    emit(
        "probs with one value per row should be P(class 1), got values of at least 0.5 in all rows, although "
        "class 1 is less frequent than these values imply: they may be confidences of the predicted classes; "
        "pass two columns, the probabilities of class 0 and class 1"
    )


def warn_fitted_rows(share: float) -> None:
    """Warn if a calibrator is evaluated on rows that it was fitted on.

    `share` is the number of rows in both sets, divided by the size of the smaller set. A share of up to 5%
    causes no warning.
    """
    if share > _MAX_OVERLAP:
        partly = "" if share == 1 else f" (about {share:.0%} of the smaller of the two sets)"
        emit(
            "a calibrator should be evaluated on rows that it was not fitted on, got rows that it was fitted "
            f"on{partly}: the result is too optimistic; set some labelled rows aside for evaluation"
        )


def warn_repeats(n_repeats: int) -> None:
    """Warn about copies of rows, since cross-validation may fit on one copy and evaluate on another.

    There is no warning if `n_repeats`, the number of copies, is zero.
    """
    if n_repeats:
        emit(
            f"logits should contain every row once, got {n_repeats} copies of other rows, nearly always "
            "with the same label: copies in different folds make cross-validation too optimistic; drop the "
            "copies, or keep rows that belong together in one fold with fold_groups (in a table, a column "
            "'fold_group'), which needs all rows in memory"
        )


def warn_separable(
    slices: IntArray, name: Callable[[int], str], *, can_tie: bool = False, can_shrink: bool = False
) -> None:
    """Warn about slices on which the fit makes no error; their parameters have no finite optimum.

    A slice is a set of rows that share parameters, such as the rows of a predicted class or of a group. If
    `can_tie` is True, the message recommends a finite `gamma`, which limits how far slices can differ. If
    `can_shrink` is True, it recommends a ridge.
    """
    if slices.size:
        remedy = f"fit on more rows{_OR_TIE if can_tie else ''}{_OR_RIDGE if can_shrink else ''}"
        emit(
            f"the fit makes no error on {_list(slices, name)}, so the optimal parameters are infinite and "
            f"the fitted ones are arbitrary large numbers; {remedy}"
        )


def _list(slices: IntArray, name: Callable[[int], str], max_names: int = 8) -> str:
    names = ", ".join(name(int(k)) for k in slices[:max_names])
    return names if len(slices) <= max_names else f"{names} and {len(slices) - max_names} more"
