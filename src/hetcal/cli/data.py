"""Commands on a file of logits: `evaluate`, `diagnose`, `fit` and `apply`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hetcal._progress import listen_to_progress
from hetcal.cli.application import (
    Bins,
    ClassNames,
    IdColumn,
    Json,
    LabelColumn,
    Labels,
    Logits,
    NoiseRate,
    TrainCounts,
    Transition,
    app,
    print_json,
)
from hetcal.cli.progress import progress

__all__ = ["apply", "diagnose", "evaluate", "fit"]

# Names of hetcal.compare.METHODS, repeated here so that the help does not need to import the calibrators.
_METHODS = (
    "identity", "ts", "vs", "ms", "binary", "platt", "isotonic", "histogram", "cts",
    "classwise-platt", "classwise-vs", "classwise-isotonic", "classwise-histogram", "auto",
)  # fmt: skip


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
    noise_rate: NoiseRate = None,
    transition: Transition = None,
    bins: Bins = 15,
    as_json: Json = False,
) -> None:
    """Compute accuracy, NLL and calibration errors, and the errors to expect by chance alone.

    Accuracy and ECE are also computed for each predicted class.
    """
    with progress("evaluating", quiet=as_json):
        from hetcal import artefact, logits_files, metrics
        from hetcal.cli import inputs, tables

        model = None if calibrator is None else artefact.load(calibrator)
        data = logits_files.load_logits(logits, labels=labels, label_column=label_column, id_column=id_column)
        rows, names = data.judged, inputs.select_class_names(classes, data, model)
        options: dict[str, Any] = {"n_bins": bins, "class_names": names, **rows.scores}
        options["transition"] = inputs.read_label_noise(noise_rate, transition)
        if model is not None:
            inputs.check_column_order(model, names, data)
            options |= {"calibrator": model, "groups": inputs.required_groups(model, rows, logits)}
        result = metrics.evaluate(labels=rows.labels, **options)
    print_json(result.to_dict()) if as_json else tables.show_evaluation(result)


@app.command()
def diagnose(
    logits: Logits,
    labels: Labels = None,
    label_column: LabelColumn = None,
    id_column: IdColumn = None,
    classes: ClassNames = None,
    train_counts: TrainCounts = None,
    noise_rate: NoiseRate = None,
    transition: Transition = None,
    bins: Bins = 15,
    as_json: Json = False,
) -> None:
    """Show for each class whether it is over- or under-confident, with intervals and possible causes."""
    with progress("diagnosing", quiet=as_json):
        from hetcal import diagnosis, logits_files
        from hetcal.cli import inputs, tables

        data = logits_files.load_logits(logits, labels=labels, label_column=label_column, id_column=id_column)
        options: dict[str, Any] = {
            "train_counts": None if train_counts is None else inputs.read_counts(train_counts),
            "class_names": inputs.select_class_names(classes, data),
            "transition": inputs.read_label_noise(noise_rate, transition),
            "n_bins": bins,
            **data.judged.scores,
        }
        result = diagnosis.diagnose(labels=data.judged.labels, **options)
    print_json(result.to_dict()) if as_json else tables.show_diagnosis(result)


@app.command()
def fit(
    logits: Logits,
    output: Annotated[Path, typer.Option("--output", "-o", help="Calibrator file to write (.json)")],
    method: Annotated[str, typer.Option("--method", "-m", help=f"One of: {', '.join(_METHODS)}")] = "auto",
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
    noise_rate: NoiseRate = None,
    transition: Transition = None,
    as_json: Json = False,
) -> None:
    """Fit a calibrator on the validation rows of a file and save it as JSON."""
    with progress("fitting", quiet=as_json) as update, listen_to_progress(update):
        from hetcal import artefact
        from hetcal.cli import fitting, inputs, tables

        fitted = fitting.fit_file(
            logits,
            method=method,
            gamma=gamma,
            change_decisions=change_decisions,
            by_group=by_group,
            in_batches=in_batches,
            labels=labels,
            columns={"label_column": label_column, "id_column": id_column},
            classes=classes,
            transition=inputs.read_label_noise(noise_rate, transition),
        )
        artefact.save(fitted.model, output)
    auto = fitting.describe_auto(fitted.model)
    if as_json:
        summary = {"method": method, "rows": fitted.n_rows, "classes": fitted.n_classes, "file": str(output)}
        print_json(summary | (auto or {}))
        return
    if auto:
        tables.show_candidates(auto["candidates"], final_step=fitted.model.has_final_step_)
    typer.echo(f"wrote {output}: {method}, fitted on {fitted.n_rows} rows of {fitted.n_classes} classes")
    if auto and auto["advice"]:
        typer.echo(auto["advice"])


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
    with progress("applying the calibrator", quiet=as_json):
        from hetcal import artefact, logits_files
        from hetcal.cli import inputs

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
