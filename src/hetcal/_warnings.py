"""Warnings that name what they are about, and contexts that silence or collect them.

:func:`warnings.catch_warnings` changes filters that all threads share, and concurrent calls restore them in
any order. What is silenced or collected here belongs to a context variable, and so to one call alone.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from hetcal._typing import IntArray

__all__ = [
    "CalibrationWarning",
    "collect_warnings",
    "emit",
    "quiet",
    "warn_at_bound",
    "warn_fitted_rows",
    "warn_never_predicted",
    "warn_repeats",
    "warn_separable",
    "warn_thin_data",
]

_OVERLAP = 0.05  # share of the fitted rows above which judging on them deserves a warning
_OR_TIE = ", or set gamma (--gamma) to a finite number, which ties them to the others"
_OR_RIDGE = ", or in Python set a ridge"
# Categories with the list that collects their texts, or None where they are silenced; the innermost first.
_handlers: ContextVar[tuple[tuple[type[Warning], list[str] | None], ...]] = ContextVar(
    "hetcal_warnings", default=()
)


class CalibrationWarning(UserWarning):
    """The fit is valid, but the data leave part of it undecided."""


def emit(text: str, category: type[Warning] = CalibrationWarning) -> None:
    """Warn at the line that called hetcal, unless a context silences or collects this category.

    All warnings of hetcal go through this function.
    """
    for handled, texts in _handlers.get():
        if issubclass(category, handled):
            if texts is not None:
                texts.append(text)
            return
    frame, level = inspect.currentframe(), 1
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("hetcal."):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)


@contextmanager
def quiet(category: type[Warning] = CalibrationWarning) -> Iterator[None]:
    """Inside, hetcal emits no warnings of this category; those of other packages are unaffected."""
    with _handle(category, None):
        yield


@contextmanager
def collect_warnings(category: type[Warning] = CalibrationWarning) -> Iterator[list[str]]:
    """Inside, texts of hetcal's warnings of this category are appended to a list instead of being emitted."""
    texts: list[str] = []
    with _handle(category, texts):
        yield texts


@contextmanager
def _handle(category: type[Warning], texts: list[str] | None) -> Iterator[None]:
    token = _handlers.set(((category, texts), *_handlers.get()))
    try:
        yield
    finally:
        _handlers.reset(token)


def warn_thin_data(y: IntArray, n_classes: int) -> None:
    """Say that there are fewer rows than classes, or labels of one class only."""
    if len(y) < n_classes:
        emit(
            f"logits should have at least one row per class, got {len(y)} rows for {n_classes} classes; "
            "most classes will share one fit"
        )
    if len(y) > 1 and y.min() == y.max():
        emit(
            f"labels should hold more than one class, got only class {y[0]}; "
            "the fit says nothing about the others"
        )


def warn_never_predicted(slices: IntArray, name: Callable[[int], str]) -> None:
    """Say which slices have no rows and take the shared parameters."""
    if slices.size:
        emit(f"no row is predicted as {_list(slices, name)}: the shared parameters are used there")


def warn_at_bound(
    slices: IntArray, name: Callable[[int], str], bounds: str, *, can_tie: bool = False
) -> None:
    """Say which slices have their optimum at a bound; `can_tie`: a finite Γ would tie them to others."""
    if slices.size:
        remedy = f"fit on more rows{_OR_TIE if can_tie else ''}"
        emit(
            f"the best temperature lies at a bound {bounds} for {_list(slices, name)}: all predictions there "
            f"are right, or none is better than chance; {remedy}"
        )


def warn_fitted_rows(share: float) -> None:
    """Say that a calibrator is judged on rows that it was fitted on."""
    if share > _OVERLAP:
        which = "the rows" if share == 1 else f"about {share:.0%} of the rows"
        emit(
            f"a calibrator should be judged on rows that it was not fitted on, got {which} that it was "
            "fitted on: it looks better here than it is; keep some labelled rows apart for judging"
        )


def warn_repeats(n_repeats: int) -> None:
    """Say that rows are copies of others, which cross-validation then sees on both sides."""
    if n_repeats:
        emit(
            f"logits should hold every row once, got {n_repeats} copies of other rows, always with the same "
            "label: a copy in another fold makes a fit look better than it is; drop the copies, or keep rows "
            "that belong together in one fold with fold_groups (in a table, a column 'fold_group')"
        )


def warn_separable(
    slices: IntArray, name: Callable[[int], str], *, can_tie: bool = False, can_shrink: bool = False
) -> None:
    """Say which slices are fitted without error, so that their parameters have no finite best value.

    `can_tie`: a finite Γ would tie them to other slices; `can_shrink`: a ridge would shrink them.
    """
    if slices.size:
        remedy = f"fit on more rows{_OR_TIE if can_tie else ''}{_OR_RIDGE if can_shrink else ''}"
        emit(
            f"the fit makes no error on {_list(slices, name)}, so that the best parameters are infinite and "
            f"those kept only very large; {remedy}"
        )


def _list(slices: IntArray, name: Callable[[int], str], most: int = 8) -> str:
    shown = ", ".join(name(int(k)) for k in slices[:most])
    return shown if len(slices) <= most else f"{shown} and {len(slices) - most} more"
