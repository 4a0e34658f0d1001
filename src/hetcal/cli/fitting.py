"""Fit a calibrator to a file of logits, for `hetcal fit`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hetcal import logits_files
from hetcal.calibrators.auto import AutoCalibrator, decision_advice
from hetcal.cli import inputs
from hetcal.compare import METHODS, make_method

__all__ = ["Fitted", "describe_auto", "fit_file"]

_REMEDY = "use --change-decisions"


@dataclass(frozen=True)
class Fitted:
    """A fitted calibrator, and the number of rows and of classes that it was fitted on."""

    model: Any
    n_rows: int
    n_classes: int


def fit_file(
    logits: Path,
    *,
    method: str,
    gamma: str | None,
    change_decisions: bool,
    by_group: bool,
    in_batches: bool,
    labels: Path | None,
    columns: dict[str, str | None],
    classes: Path | None,
    transition: Any = None,
) -> Fitted:
    """Fit a calibrator to the validation rows of a file; the arguments are the options of `hetcal fit`.

    `columns` contains the options `label_column` and `id_column`. `transition` describes the label noise. It
    is passed to the calibrator's ``fit``.
    """
    model = make_method(method, inputs.parse_gamma(gamma))
    if change_decisions:
        _allow_changes(model, method)
    if not in_batches:
        return Fitted(
            model, *_fit_rows(model, method, logits, labels, columns, classes, by_group, transition)
        )
    if transition is not None:
        raise ValueError(
            "--in-batches must be left out with --noise-rate or --transition, which need all rows in memory, "
            "got both; omit --in-batches"
        )
    return Fitted(model, *_fit_batches(model, method, logits, labels, columns, classes, by_group))


def describe_auto(model: Any) -> dict[str, Any] | None:
    """Return what an AutoCalibrator selected, its candidates, and what it costs to keep decisions.

    If this cost is large, "advice" contains a recommendation. The result is None for other calibrators.
    """
    if not isinstance(model, AutoCalibrator):
        return None
    return {
        "chosen": model.best_name_,
        "candidates": model.candidates_,
        "decision_cost": model.decision_cost_,
        "advice": decision_advice(model.decision_cost_, _REMEDY),
    }


def _allow_changes(model: Any, method: str) -> None:
    if not isinstance(model, AutoCalibrator):
        raise ValueError(
            f"--change-decisions must be used with --method auto, got {method}; omit --change-decisions"
        )
    model.set_params(keep_decision=False)


def _accepts(model: Any, n_classes: int) -> bool:
    return model._required_classes in (None, n_classes)


def _check_classes(model: Any, method: str, n_classes: int) -> None:
    if not _accepts(model, n_classes):
        raise ValueError(
            f"--method {method} must be used with {model._required_classes} classes, got {n_classes}; "
            "use --method ms or vs"
        )


def _fit_rows(
    model: Any,
    method: str,
    logits: Path,
    labels: Path | None,
    columns: dict[str, str | None],
    classes: Path | None,
    by_group: bool,
    transition: Any,
) -> tuple[int, int]:
    """Fit on the validation rows of a file and return the number of rows and of classes."""
    data = logits_files.load_logits(logits, labels=labels, **columns)
    if by_group and data.val.groups is None:
        raise ValueError(
            f"--by-group must be used with a file that has groups, got {data.path!r}, which has none; "
            f"{inputs.ADD_GROUPS}"
        )
    n_rows, n_classes = data.val.logits.shape
    _check_classes(model, method, n_classes)
    model.fit(
        labels=data.val.labels,
        **data.val.scores,
        groups=data.val.groups if by_group else None,
        class_names=inputs.select_class_names(classes, data),
        fold_groups=data.val.fold_groups,
        transition=transition,
    )
    return n_rows, n_classes


def _fit_batches(
    model: Any,
    method: str,
    logits: Path,
    labels: Path | None,
    columns: dict[str, str | None],
    classes: Path | None,
    by_group: bool,
) -> tuple[int, int]:
    """Fit on the rows of a file, which are read in batches; return the number of rows and of classes."""
    batches = logits_files.open_batches(logits, labels=labels, groups=by_group, **columns)
    if model._needs_memory():
        supported = [
            name
            for name, make in METHODS.items()
            if not make(None)._needs_memory() and _accepts(make(None), batches.n_classes)
        ]
        raise ValueError(
            f"--in-batches must be used with one of the methods {', '.join(supported)}, got {method}, which "
            "needs all rows in memory; omit --in-batches or choose one of these methods"
        )
    _check_classes(model, method, batches.n_classes)
    names = None if classes is None else inputs.read_class_names(classes, batches.n_classes)
    model.fit(batches, class_names=names)
    return sum(len(y) for _, y, _, _ in batches), batches.n_classes
