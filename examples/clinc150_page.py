"""The CLINC150 page: every number in it is looked up in the table of results."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import page_parts
from clinc150_figures import METHODS, SHOWN, draw_gaps, draw_methods
from clinc150_texts import FIGURES, HEAD, LOGISTIC, MENDED, READING, RULES, STOPPING, WRONG
from tidy import Table, write_whole

__all__ = ["COLUMNS", "text_table", "write_page"]

COLUMNS = ("model", "variant", "corruption", "seed", "method", "metric")
Case = tuple[str, str, str]

_MODELS = {"network": "network", "logistic": "logistic regression"}
_CORRUPTIONS = {"none": "as it is", "noise": "30% label noise on half", "few": "10% of the rows of half"}
_ERRORS = ("ece", "max_ece", "avg_ece")
_PARTS = [(by, part) for by in ("true", "predicted") for part in ("affected", "rest")]


def text_table(table: Table) -> str:
    """Means over the seeds for the terminal, in per cent; floors in brackets."""
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
    """Write the page and its figures into the folder of the documents; return the page."""
    lead = table.names("model")[0]
    draw_gaps(table, lead, docs / "images" / "clinc150-gaps.svg")
    draw_methods(table, lead, docs / "images" / "clinc150-methods.svg")
    shown = [(lead, *case) for case in SHOWN]
    others = [case for case in _cases(table) if case not in shown]
    numbers = dict(_numbers(table, lead)) | {"seeds": _seeds(table)}
    told = {"network": STOPPING, "logistic": LOGISTIC}
    wrong = [*WRONG, *(text for model in table.names("model") for text in told[model])]
    parts = [
        *(HEAD, page_parts.bullets(text.format(**numbers) for text in RULES), "## What goes wrong\n"),
        *(page_parts.paragraph(READING), _gap_table(table)),
        page_parts.bullets(text.format(**numbers) for text in wrong),
        *("## What mends it\n", FIGURES.format(**numbers)),
        page_parts.bullets(text.format(**numbers) for text in MENDED),
        *(_case_table(table, case) for case in shown),
        "## The other cases\n",
        *(_folded(_title(case), _case_table(table, case)) for case in others),
    ]
    page = docs / "text-example.md"
    write_whole(page, "\n".join(parts).rstrip() + "\n")
    return page


def _cases(table: Table) -> list[Case]:
    return list(dict.fromkeys((keys[0], keys[1], keys[2]) for keys in (line.keys for line in table.lines)))


def _title(case: Case) -> str:
    return f"{_MODELS[case[0]].capitalize()}, {case[1]}, {_CORRUPTIONS[case[2]]}"


def _folded(title: str, text: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{text}\n</details>\n"


def _seeds(table: Table) -> str:
    n = len(table.names("seed"))
    return "One seed." if n == 1 else f"Numbers are mean ± standard deviation over {n} seeds."


def _spread(table: Table, *key: str, scale: float = 100, digits: int = 1, sign: str = "") -> str:
    """Mean ± standard deviation; the mean alone where there is one seed."""
    text = f"{scale * table.mean(*key):{sign}.{digits}f}".replace("-", "−")
    return text if len(table.values(*key)) == 1 else f"{text} ± {scale * table.std(*key):.{digits}f}"


def _case_table(table: Table, case: Case) -> str:
    """Methods against metrics, in per cent but for the NLL."""
    rows = []
    for name in METHODS:
        key = (*case, name)
        errors = (f"{_spread(table, *key, m)} ({100 * table.floor(*key, m):.1f})" for m in _ERRORS)
        nll = _spread(table, *key, "nll", scale=1, digits=3)
        rows.append([name, _spread(table, *key, "accuracy"), nll, *errors])
    head = ("method", "accuracy", "NLL", "ECE (floor)", "max-ECE (floor)", "Avg-ECE (floor)")
    return f"**{_title(case)}** (per cent but for NLL)\n\n{page_parts.table(head, rows)}"


def _gap_table(table: Table) -> str:
    """Confidence − accuracy of the uncalibrated models, affected intents and rest."""
    rows = [
        [_title(case), *(_spread(table, *case, "Uncal", f"gap_{by}_{part}", sign="+") for by, part in _PARTS)]
        for case in _cases(table)
    ]
    return page_parts.table(("model, training rows", *(f"{by}: {part}" for by, part in _PARTS)), rows)


def _numbers(table: Table, lead: str) -> Iterator[tuple[str, str]]:
    """Numbers of the texts by name: variant, corruption, method and metric, such as `small_none_ts_nll`.

    The full variant is not named; logistic regression on it is `log`.
    """
    prefixes = {(lead, name): f"{name}_" for name in ("small", "imbalanced")}
    prefixes |= {("logistic", "full"): "log_", (lead, "full"): ""}
    for case in _cases(table):
        start = [prefixes[case[:2]]] if case[:2] in prefixes else []
        start += ["log_"] * (case[:2] == ("logistic", "full") == (lead, "full"))
        for prefix in start:
            for method, short in _SHORT.items():
                yield from _of_method(table, (*case, method), f"{prefix}{case[2]}_{short}")
    yield "model", _MODELS[lead]
    yield "n_runs", str(sum(line.keys[0] == lead and line.keys[-1] == "choice" for line in table.lines))


def _of_method(table: Table, key: tuple[str, ...], name: str) -> Iterator[tuple[str, str]]:
    for metric in table.names(
        "metric", **dict(zip(("model", "variant", "corruption", "method"), key, strict=True))
    ):
        mean = table.mean(*key, metric)
        yield f"{name}_{metric}", _as_text(metric, mean)
        if metric in _ERRORS:
            floor = table.floor(*key, metric)
            yield f"{name}_{metric}_floor", _as_text(metric, floor)
            yield f"{name}_{metric}_excess", _as_text(metric, mean - floor)
            yield f"{name}_{metric}_std", _as_text(metric, table.std(*key, metric))


def _as_text(metric: str, value: float) -> str:
    if metric.startswith("gap"):
        return page_parts.points(value)
    if metric in ("nll", "gamma"):
        return f"{value:.3f}"
    return f"{value:.0f}" if metric in ("choice", "at_bound") else f"{100 * value:.1f}"


_SHORT = {
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
