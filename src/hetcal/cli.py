"""Parse, call, print: the commands of `hetcal`."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from hetcal import _version, files, tables
from hetcal._columns import column_order, counted_names
from hetcal.compare import METHODS, make_method
from hetcal.diagnosis import diagnose as run_diagnosis
from hetcal.metrics import evaluate as run_evaluation

__all__ = ["app"]

app = typer.Typer(
    name="hetcal",
    help="Make a classifier's confidence right for every class and group, not only on average.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

_ADD_GROUPS = "add a column 'group' to a table, or an array 'groups' to an .npz file"
_LOGITS = """File of logits and labels: .npz, .npy, .csv or .parquet. A table has a column 'label' and one
per class, named prob_<class> where it holds probabilities"""
Logits = Annotated[Path, typer.Argument(metavar="LOGITS", help=_LOGITS)]
Labels = Annotated[Path | None, typer.Option(help="Labels of a .npy file of logits")]
Names = Annotated[Path | None, typer.Option("--classes", help="Text file with one class name a line")]
Counts = Annotated[
    Path | None,
    typer.Option("--train-counts", help="Training rows of every class: one number a line, in class order"),
]
Bins = Annotated[int, typer.Option("--bins", min=1, help="Number of ECE bins")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables")]
Out = Annotated[Path | None, typer.Option("--output", "-o", help="File to write")]


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop")] = False,
) -> None:
    if version:
        typer.echo(f"hetcal {_version.__version__}")
        raise typer.Exit


@app.command()
def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for figures and page")] = Path(
        "demo-output"
    ),
    as_json: Json = False,
) -> None:
    """Diagnose, correct and compare on real logits that come with the package."""
    from hetcal.demo import run_demo

    result = run_demo(output, quiet=as_json)
    if as_json:
        _print_json(result)


@app.command()
def evaluate(
    logits: Logits,
    calibrator: Annotated[
        Path | None, typer.Option("--calibrator", "-c", help="Judge these logits after this calibrator")
    ] = None,
    labels: Labels = None,
    classes: Names = None,
    bins: Bins = 15,
    as_json: Json = False,
) -> None:
    """Accuracy, NLL, ECE, max-ECE and Avg-ECE with their noise floors, and a row per class."""
    data = files.load_logits(logits, labels=labels)
    rows, names = data.judged, _names(classes, data)
    options: dict[str, Any] = {"n_bins": bins, "class_names": names, **rows.scores}
    if calibrator is not None:
        model = files.load(calibrator)
        _check_order(model, names, data)
        options |= {"calibrator": model, "groups": _groups(model, rows, logits)}
    result = run_evaluation(labels=rows.labels, **options)
    _print_json(result.to_dict()) if as_json else tables.show_evaluation(result)


@app.command()
def diagnose(
    logits: Logits,
    labels: Labels = None,
    classes: Names = None,
    train_counts: Counts = None,
    bins: Bins = 15,
    as_json: Json = False,
) -> None:
    """Say class by class what is wrong, with intervals, and what the theory suggests as the cause."""
    data = files.load_logits(logits, labels=labels)
    counts = None if train_counts is None else _read_counts(train_counts)
    options: dict[str, Any] = {"train_counts": counts, "class_names": _names(classes, data), "n_bins": bins}
    result = run_diagnosis(labels=data.judged.labels, **options | data.judged.scores)
    _print_json(result.to_dict()) if as_json else tables.show_diagnosis(result)


@app.command()
def fit(
    logits: Logits,
    output: Annotated[Path, typer.Option("--output", "-o", help="Calibrator file to write (.json)")],
    method: Annotated[str, typer.Option("--method", "-m", help=f"One of: {', '.join(METHODS)}")] = "auto",
    gamma: Annotated[
        str | None, typer.Option(help="Γ of class-wise methods: a number, inf, cv or bayes")
    ] = None,
    by_group: Annotated[
        bool, typer.Option("--by-group", help="Slice by the file's groups instead of by predicted class")
    ] = False,
    in_batches: Annotated[
        bool, typer.Option("--in-batches", help="Read .npy or .parquet bit by bit: for more rows than memory")
    ] = False,
    labels: Labels = None,
    classes: Names = None,
    as_json: Json = False,
) -> None:
    """Fit a calibrator on the file's validation rows and write it as JSON."""
    model = make_method(method, _gamma(gamma))
    if in_batches:
        rows = files.open_batches(logits, labels=labels, groups=by_group)
        _check_batches(method, model)
        names = None if classes is None else _class_lines(classes, rows.n_classes)
        with tables.progress("fitting", quiet=as_json):
            model.fit(rows, class_names=names)
        shape = (sum(len(y) for _, y, _, _ in rows), rows.n_classes)
    else:
        data = files.load_logits(logits, labels=labels)
        if by_group and data.val.groups is None:
            raise ValueError(
                f"--by-group must be given a file with groups, got {data.path!r}, which has none; "
                f"{_ADD_GROUPS}"
            )
        with tables.progress("fitting", quiet=as_json):
            model.fit(
                labels=data.val.labels,
                **data.val.scores,
                groups=data.val.groups if by_group else None,
                class_names=_names(classes, data),
                fold_groups=data.val.fold_groups,
            )
        shape = data.val.logits.shape
    files.save(model, output)
    summary = {"method": method, "rows": shape[0], "classes": shape[1], "file": str(output)}
    if hasattr(model, "best_name_"):
        summary |= {"chosen": model.best_name_, "candidates": model.candidates_}
    _print_json(summary) if as_json else tables.show_fit(summary)


@app.command()
def apply(
    calibrator: Annotated[Path, typer.Argument(metavar="CALIBRATOR", help="File written by hetcal fit")],
    logits: Annotated[Path, typer.Argument(metavar="LOGITS", help="File of logits; labels are not needed")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Probabilities: .npz, .npy, .csv or .parquet")
    ],
    as_json: Json = False,
) -> None:
    """Write calibrated probabilities for a file of logits."""
    model = files.load(calibrator)
    sets, names = files.load_unlabelled(logits)
    columns = {
        f"{prefix}probs": model.predict_proba(
            **rows.scores, groups=_groups(model, rows, logits), class_names=names
        )
        for prefix, rows in sets.items()
    }
    if len(columns) > 1 and output.suffix.lower() != ".npz":
        raise ValueError(f"-o must end in .npz for a file with validation and test rows, got {output.name!r}")
    files.save_table(output, columns, names)
    rows = {name: len(p) for name, p in columns.items()}
    told = ", ".join(f"{name} ({n} rows)" for name, n in rows.items())
    _print_json({"file": str(output), "rows": rows}) if as_json else typer.echo(f"wrote {output}: {told}")


@app.command()
def report(
    logits: Logits,
    output: Out = None,
    labels: Labels = None,
    classes: Names = None,
    train_counts: Counts = None,
    groups: Annotated[Path | None, typer.Option(help="Text file with the group of every judged row")] = None,
    format_: Annotated[str, typer.Option("--format", help="html, md or json")] = "html",
    fail_over: Annotated[
        list[str] | None,
        typer.Option(help="Gate such as max_ece_excess=0.05; exit code 1 where it is exceeded"),
    ] = None,
    bins: Bins = 15,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json")] = False,
) -> None:
    """Write one self-contained page that shows what is wrong and what corrects it."""
    from hetcal.report import check_gates, check_request, collect_report, render_report

    kind, gates = "json" if as_json else format_, fail_over or []
    check_request(kind, gates)
    data = files.load_logits(logits, labels=labels)
    counts = None if train_counts is None else _read_counts(train_counts)
    rows = None if groups is None else _lines(groups)
    options: dict[str, Any] = {"train_counts": counts, "groups": rows, "n_bins": bins}
    with tables.progress("judging and drawing"):
        made = collect_report(data, class_names=_names(classes, data), **options)
        text = render_report(made, kind)
    if output is None and kind != "html":
        typer.echo(text)
    else:
        target = output or Path("report.html")
        files.write_atomic(target, lambda file: file.write(text.encode()))
        typer.echo(f"wrote {target}")
    broken = check_gates(made, gates)
    for line in broken:
        typer.echo(f"hetcal: {line}", err=True)
    if broken:
        raise typer.Exit(1)


@app.command()
def plan(
    logits: Logits,
    target: Annotated[
        float | None, typer.Option(help="Held-out NLL to reach; default: near the best method's limit")
    ] = None,
    labels: Labels = None,
    classes: Names = None,
    check_quarter: Annotated[
        bool,
        typer.Option("--check-quarter", help="Plan on a quarter of the rows and compare with a fit on all"),
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Figure of the curves to write (.png, .svg or .pdf)")
    ] = None,
    as_json: Json = False,
) -> None:
    """How many validation rows class-wise calibration needs, by sub-sampling the rows at hand."""
    from hetcal import planning

    data = files.load_logits(logits, labels=labels)
    rows = (data.val.logits, data.val.labels)
    with tables.progress("planning", quiet=as_json) as step:
        if check_quarter:
            test = () if data.test is None else (data.test.logits, data.test.labels)
            result: Any = planning.check_quarter(*rows, *test, on_step=step)
        else:
            result = planning.plan_validation_size(
                *rows, target, class_names=_names(classes, data), on_step=step
            )
    _print_json(result.to_dict()) if as_json else typer.echo(str(result))
    if output is not None and not check_quarter:
        figure: Any = planning.plan_figure(result).figure
        files.write_atomic(output, lambda file: figure.savefig(file, format=output.suffix[1:]))
        typer.echo(f"wrote {output}")


@app.command()
def theory(
    draws: Annotated[int, typer.Option(min=1, help="Simulated data sets per event")] = 2000,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Folder for the figures")] = None,
    as_json: Json = False,
) -> None:
    """Check the paper's lemma, theorem and bounds, exactly and by simulation."""
    from hetcal.theory import theory_checks

    rows = theory_checks(rng=0, draws=draws)
    _print_json({"rows": [vars(row) for row in rows]}) if as_json else tables.show_theory(rows)
    if output is not None:
        from hetcal.theory.figures import write_theory_figures

        typer.echo(f"wrote {write_theory_figures(output)}", err=as_json)


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(_plain(value), indent=1, ensure_ascii=False, allow_nan=False))


def _plain(value: Any) -> Any:
    """The value in JSON's own types; what is not finite becomes null."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _check_order(model: Any, names: list[str] | None, data: files.LogitsFile) -> None:
    """Refuse label numbers where the columns stand in another order than those of the fit."""
    known = getattr(model, "class_names_", None)
    if names is None or data.labels_by_name:
        return
    if column_order(known, names) is not None:
        raise ValueError(
            f"label must be a class name where columns stand in another order than in fit, got numbers in "
            f"{data.path!r}, which could mean either order; write names, or put the columns in the order "
            f"{', '.join((known or counted_names(len(names)))[:9])}"
        )


def _groups(model: Any, rows: files.Split, path: Path) -> Any:
    """Groups of the rows for a calibrator that was fitted by group, None for all others."""
    if not files.uses_groups(model):
        return None
    if rows.groups is None:
        raise ValueError(
            f"LOGITS must have the group of every row, as in fit, got none in {path.name!r}; {_ADD_GROUPS}"
        )
    return rows.groups


def _check_batches(method: str, model: Any) -> None:
    if model._needs_memory():
        able = [name for name, make in METHODS.items() if not make(None)._needs_memory()]
        raise ValueError(
            f"--in-batches must come with --method {', '.join(able)}, got {method}, which needs all rows at "
            "once; leave out --in-batches or use one of these methods"
        )


def _names(path: Path | None, data: files.LogitsFile) -> list[str] | None:
    if path is None:
        return data.class_names
    names = _class_lines(path, data.val.logits.shape[1])
    own = data.class_names
    if own is not None and names != own and sorted(names) == sorted(own):
        raise ValueError(
            f"--classes must be in the order of the columns ({', '.join(own[:9])}), got "
            f"{', '.join(names[:9])}; leave it out, since the columns have these names"
        )
    return names


def _class_lines(path: Path, n_classes: int) -> list[str]:
    names = [files.printable(line) for line in _lines(path)]
    if len(names) != n_classes:
        raise ValueError(
            f"--classes must name {n_classes} classes, one a line, got {len(names)} in {str(path)!r}"
        )
    return names


def _lines(path: Path) -> list[str]:
    return [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def _read_counts(path: Path) -> list[int]:
    """Numbers in class order: the last field of every line, headers passed over."""
    fields = [
        line.split(",")[-1].strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()
    ]
    if fields and not fields[0].replace(".", "", 1).isdigit():
        fields = fields[1:]
    try:
        return [int(float(field)) for field in fields]
    except ValueError:
        raise ValueError(
            f"--train-counts must hold one number a line, got {str(path)!r} with other text"
        ) from None


def _gamma(text: str | None) -> float | str | None:
    if text is None or text in ("cv", "bayes"):
        return text
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"--gamma must be a number, inf, cv or bayes, got {text!r}") from None


def _add_installed_commands() -> None:
    """Add the commands of installed packages, and placeholders for those of hetcal-paper if it is missing."""
    entry_points = metadata.entry_points(group="hetcal.commands")
    for entry_point in entry_points:
        app.command(entry_point.name)(entry_point.load())
    anything = {"allow_extra_args": True, "ignore_unknown_options": True}
    for name in {"train", "reproduce"} - set(entry_points.names):
        app.command(name, help="Part of hetcal-paper, which is not installed.", context_settings=anything)(
            _paper_is_missing
        )


def _paper_is_missing(context: typer.Context) -> None:
    raise ImportError(
        f"hetcal {context.info_name} needs hetcal-paper; install it from a checkout of the repository with: "
        "pip install ./paper"
    )


_add_installed_commands()
