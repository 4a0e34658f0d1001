"""Commands on a file of logits: `evaluate`, `diagnose`, `fit` and `apply`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hetcal import artefact, logits_files
from hetcal._progress import listen_to_progress
from hetcal.calibrators.auto import AutoCalibrator, decision_advice
from hetcal.cli import inputs, tables
from hetcal.cli.application import (
    Bins,
    ClassNames,
    IdColumn,
    Json,
    LabelColumn,
    Labels,
    Logits,
    TrainCounts,
    app,
    print_json,
)
from hetcal.compare import METHODS, make_method
from hetcal.diagnosis import diagnose as run_diagnosis
from hetcal.metrics import evaluate as run_evaluation

__all__ = ["apply", "diagnose", "evaluate", "fit"]

_REMEDY = "use --change-decisions"


@app.command()
def evaluate(
    logits: Logits,
    calibrator: Annotated[
        Path | None, typer.Option("--calibrator", "-c", help="Calibrator file to apply before evaluating")
    ] = None,
    labels: Labels = None,
    label_column: LabelColumn = None,
    id_column: IdColumn = None,
    classes: ClassNames = None,
    bins: Bins = 15,
    as_json: Json = False,
) -> None:
    """Compute accuracy, NLL and calibration errors with noise floors, overall and by predicted class."""
    model = None if calibrator is None else artefact.load(calibrator)
    data = logits_files.load_logits(logits, labels=labels, label_column=label_column, id_column=id_column)
    rows, names = data.judged, inputs.select_class_names(classes, data, model)
    options: dict[str, Any] = {"n_bins": bins, "class_names": names, **rows.scores}
    if model is not None:
        inputs.check_column_order(model, names, data)
        options |= {"calibrator": model, "groups": inputs.required_groups(model, rows, logits)}
    result = run_evaluation(labels=rows.labels, **options)
    print_json(result.to_dict()) if as_json else tables.show_evaluation(result)


@app.command()
def diagnose(
    logits: Logits,
    labels: Labels = None,
    label_column: LabelColumn = None,
    id_column: IdColumn = None,
    classes: ClassNames = None,
    train_counts: TrainCounts = None,
    bins: Bins = 15,
    as_json: Json = False,
) -> None:
    """Show for each class whether it is over- or under-confident, with intervals and possible causes."""
    data = logits_files.load_logits(logits, labels=labels, label_column=label_column, id_column=id_column)
    options: dict[str, Any] = {
        "train_counts": None if train_counts is None else inputs.read_counts(train_counts),
        "class_names": inputs.select_class_names(classes, data),
        "n_bins": bins,
        **data.judged.scores,
    }
    result = run_diagnosis(labels=data.judged.labels, **options)
    print_json(result.to_dict()) if as_json else tables.show_diagnosis(result)


@app.command()
def fit(
    logits: Logits,
    output: Annotated[Path, typer.Option("--output", "-o", help="Calibrator file to write (.json)")],
    method: Annotated[str, typer.Option("--method", "-m", help=f"One of: {', '.join(METHODS)}")] = "auto",
    gamma: Annotated[
        str | None,
        typer.Option(
            help="Γ, how far class-wise parameters may be from the shared ones: a number, inf (no limit), "
            "cv (cross-validated) or bayes (shrinkage)"
        ),
    ] = None,
    change_decisions: Annotated[
        bool,
        typer.Option(
            "--change-decisions",
            help="Allow --method auto to change decisions, which can lower the NLL",
        ),
    ] = False,
    by_group: Annotated[
        bool,
        typer.Option(
            "--by-group", help="Let class-wise methods calibrate each group instead of each predicted class"
        ),
    ] = False,
    in_batches: Annotated[
        bool,
        typer.Option(
            "--in-batches",
            help="Read a .npy or .parquet file in batches, for files that do not fit in memory",
        ),
    ] = False,
    labels: Labels = None,
    label_column: LabelColumn = None,
    id_column: IdColumn = None,
    classes: ClassNames = None,
    as_json: Json = False,
) -> None:
    """Fit a calibrator on the validation rows of a file and save it as JSON."""
    model = make_method(method, inputs.parse_gamma(gamma))
    if change_decisions:
        _allow_changes(model, method)
    columns = {"label_column": label_column, "id_column": id_column}
    with tables.progress("fitting", quiet=as_json) as update, listen_to_progress(update):
        if in_batches:
            n_rows, n_classes = _fit_batches(model, method, logits, labels, columns, classes, by_group)
        else:
            n_rows, n_classes = _fit_rows(model, method, logits, labels, columns, classes, by_group)
    artefact.save(model, output)
    is_auto = isinstance(model, AutoCalibrator)
    if as_json:
        summary = {"method": method, "rows": n_rows, "classes": n_classes, "file": str(output)}
        print_json(summary | (_describe_auto(model) if is_auto else {}))
        return
    if is_auto:
        tables.show_candidates(model.candidates_, final_step=model.has_final_step_)
    typer.echo(f"wrote {output}: {method}, fitted on {n_rows} rows of {n_classes} classes")
    if is_auto and (advice := decision_advice(model.decision_cost_, _REMEDY)):
        typer.echo(advice)


@app.command()
def apply(
    calibrator: Annotated[Path, typer.Argument(metavar="CALIBRATOR", help="File written by hetcal fit")],
    logits: Annotated[Path, typer.Argument(metavar="LOGITS", help="File of logits; labels are not needed")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="File for the probabilities (.npz, .npy, .csv or .parquet)")
    ],
    label_column: LabelColumn = None,
    id_column: Annotated[
        str | None,
        typer.Option(
            "--id-column",
            metavar="NAME",
            help="Column of a table that identifies the rows; the output has it as its first column",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write calibrated probabilities for a file of logits."""
    model = artefact.load(calibrator)
    sets, names = logits_files.load_unlabelled(
        logits,
        label_column=label_column,
        id_column=id_column,
        fit_names=getattr(model, "class_names_", None),
    )
    columns = {
        f"{prefix}probs": model.predict_proba(
            **rows.scores, groups=inputs.required_groups(model, rows, logits), class_names=names
        )
        for prefix, rows in sets.items()
    }
    if len(columns) > 1 and output.suffix.lower() != ".npz":
        raise ValueError(
            f"--output must end in .npz if LOGITS has validation and test rows, got {output.name!r}; "
            "write to a .npz file"
        )
    name_of_ids = id_column if id_column is not None and output.suffix.lower() != ".npz" else "ids"
    ids = {f"{prefix}{name_of_ids}": rows.ids for prefix, rows in sets.items() if rows.ids is not None}
    logits_files.save_table(output, columns, names, ids)
    n_rows = {name: len(probs) for name, probs in columns.items()}
    if as_json:
        print_json({"file": str(output), "rows": n_rows})
    else:
        typer.echo(f"wrote {output}: {', '.join(f'{name} ({n} rows)' for name, n in n_rows.items())}")


def _allow_changes(model: Any, method: str) -> None:
    if not isinstance(model, AutoCalibrator):
        raise ValueError(
            f"--change-decisions must be used with --method auto, got {method}; omit --change-decisions"
        )
    model.set_params(keep_decision=False)


def _describe_auto(model: AutoCalibrator) -> dict[str, Any]:
    return {
        "chosen": model.best_name_,
        "candidates": model.candidates_,
        "decision_cost": model.decision_cost_,
        "advice": decision_advice(model.decision_cost_, _REMEDY),
    }


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
    """Fit on the rows of a file, read in batches, and return the number of rows and of classes."""
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
