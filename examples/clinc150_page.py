"""Write the CLINC150 page. Every number in it comes from the table of results."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import page_parts
from clinc150_figures import METHODS, SHOWN, draw_gaps, draw_methods
from clinc150_texts import CORRECTIONS, EFFECTS, EPOCHS, FIGURES, HEAD, LOGISTIC, READING, SETUP
from tidy import Table, write_atomic

__all__ = ["COLUMNS", "text_table", "write_page"]

COLUMNS = ("model", "variant", "corruption", "seed", "method", "metric")
Case = tuple[str, str, str]

_MODELS = {"network": "network", "logistic": "logistic regression"}
_CORRUPTIONS = {
    "none": "unmodified",
    "noise": "30% label noise in half of the intents",
    "few": "10% of the rows in half of the intents",
}
_ERRORS = ("ece", "max_ece", "avg_ece")
_PARTS = [(by, part) for by in ("true", "predicted") for part in ("affected", "rest")]


def text_table(table: Table) -> str:
    """Return the means over the seeds as text, in percent, with floors in parentheses."""
    lines = []
    for case in _cases(table):
        n = len(table.values(*case, "Uncal", "nll"))
        lines += ["", f"{_title(case)}, {n} seed{'s' * (n > 1)}"]
        lines.append(f"  {'':<14}{'accuracy':>9}{'NLL':>8}{'ECE':>15}{'max-ECE':>15}{'Avg-ECE':>15}")
        for name in METHODS:
            key = (*case, name)
            cells = f"{100 * table.mean(*key, 'accuracy'):9.1f}{table.mean(*key, 'nll'):8.3f}"
            for metric in _ERRORS:
                cells += f"{100 * table.mean(*key, metric):8.1f} ({100 * table.floor(*key, metric):4.1f})"
            lines.append(f"  {name:<14}{cells}")
    return "\n".join(lines)


def write_page(table: Table, docs: Path) -> Path:
    """Write the page and its figures into the documentation folder and return the path of the page."""
    model = table.names("model")[0]
    draw_gaps(table, model, docs / "images" / "clinc150-gaps.svg")
    draw_methods(table, model, docs / "images" / "clinc150-methods.svg")
    shown = [(model, *case) for case in SHOWN]
    others = [case for case in _cases(table) if case not in shown]
    numbers = dict(_numbers(table, model)) | {"seeds": _seeds(table)}
    details = {"network": EPOCHS, "logistic": LOGISTIC}
    effects = [*EFFECTS, *(text for name in table.names("model") for text in details[name])]
    parts = [
        *(
            HEAD,
            page_parts.bullets(text.format(**numbers) for text in SETUP),
            "## Effects of the corruption\n",
        ),
        *(page_parts.paragraph(READING), _gap_table(table)),
        page_parts.bullets(text.format(**numbers) for text in effects),
        *("## Effects of calibration\n", FIGURES.format(**numbers)),
        page_parts.bullets(text.format(**numbers) for text in CORRECTIONS),
        *(_case_table(table, case) for case in shown),
        "## The other cases\n",
        *(_collapsible(_title(case), _case_table(table, case)) for case in others),
    ]
    page = docs / "text-example.md"
    write_atomic(page, "\n".join(parts).rstrip() + "\n")
    return page


def _cases(table: Table) -> list[Case]:
    return list(dict.fromkeys((keys[0], keys[1], keys[2]) for keys in (line.keys for line in table.lines)))


def _title(case: Case) -> str:
    return f"{_MODELS[case[0]].capitalize()}, {case[1]}, {_CORRUPTIONS[case[2]]}"


def _collapsible(title: str, text: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{text}\n</details>\n"


def _seeds(table: Table) -> str:
    n = len(table.names("seed"))
    return "one seed." if n == 1 else f"numbers are mean ± standard deviation over {n} seeds."


def _mean_and_std(table: Table, *key: str, scale: float = 100, digits: int = 1, sign: str = "") -> str:
    """Format mean ± standard deviation, or the mean alone if there is one seed."""
    text = f"{scale * table.mean(*key):{sign}.{digits}f}".replace("-", "−")
    return text if len(table.values(*key)) == 1 else f"{text} ± {scale * table.std(*key):.{digits}f}"


def _case_table(table: Table, case: Case) -> str:
    """Return the table of methods and metrics, in percent except for the NLL."""
    rows = []
    for name in METHODS:
        key = (*case, name)
        errors = (f"{_mean_and_std(table, *key, m)} ({100 * table.floor(*key, m):.1f})" for m in _ERRORS)
        nll = _mean_and_std(table, *key, "nll", scale=1, digits=3)
        rows.append([name, _mean_and_std(table, *key, "accuracy"), nll, *errors])
    head = ("method", "accuracy", "NLL", "ECE (floor)", "max-ECE (floor)", "Avg-ECE (floor)")
    return f"**{_title(case)}** (percent, except for NLL)\n\n{page_parts.table(head, rows)}"


def _gap_table(table: Table) -> str:
    """Return the table of confidence − accuracy of the uncalibrated models."""
    rows = [
        [
            _title(case),
            *(_mean_and_std(table, *case, "Uncal", f"gap_{by}_{part}", sign="+") for by, part in _PARTS),
        ]
        for case in _cases(table)
    ]
    return page_parts.table(("model, training rows", *(f"{by}: {part}" for by, part in _PARTS)), rows)


def _numbers(table: Table, model: str) -> Iterator[tuple[str, str]]:
    """Yield the numbers of the text by name: variant, corruption, method, metric (`small_none_ts_nll`).

    Names of the full variant have no prefix, and those of logistic regression on it start with `log`. The
    numbers of the other variants are those of `model`.
    """
    prefixes = {(model, name): f"{name}_" for name in ("small", "imbalanced")}
    prefixes |= {("logistic", "full"): "log_", (model, "full"): ""}
    for case in _cases(table):
        case_prefixes = [prefixes[case[:2]]] if case[:2] in prefixes else []
        case_prefixes += ["log_"] * (case[:2] == ("logistic", "full") == (model, "full"))
        for prefix in case_prefixes:
            for method, short in _METHOD_KEYS.items():
                yield from _method_numbers(table, (*case, method), f"{prefix}{case[2]}_{short}")
    yield "model", _MODELS[model]
    yield "n_runs", str(sum(line.keys[0] == model and line.keys[-1] == "choice" for line in table.lines))


def _method_numbers(table: Table, key: tuple[str, ...], name: str) -> Iterator[tuple[str, str]]:
    for metric in table.names(
        "metric", **dict(zip(("model", "variant", "corruption", "method"), key, strict=True))
    ):
        mean = table.mean(*key, metric)
        yield f"{name}_{metric}", _format(metric, mean)
        if metric in _ERRORS:
            floor = table.floor(*key, metric)
            yield f"{name}_{metric}_floor", _format(metric, floor)
            yield f"{name}_{metric}_excess", _format(metric, mean - floor)
            yield f"{name}_{metric}_std", _format(metric, table.std(*key, metric))


def _format(metric: str, value: float) -> str:
    if metric.startswith("gap"):
        return page_parts.points(value)
    if metric in ("nll", "gamma"):
        return f"{value:.3f}"
    return f"{value:.0f}" if metric in ("choice", "at_bound") else f"{100 * value:.1f}"


_METHOD_KEYS = {
    "Uncal": "raw",
    "Uncal, last": "last",
    "TS": "ts",
    "VS": "vs",
    "VS, ridge": "ridge",
    "CTS, Γ = inf": "inf",
    "CTS, cv": "cv",
    "CTS, bayes": "bayes",
    "CTS, bundles": "bundles",
    "Auto": "auto",
}
