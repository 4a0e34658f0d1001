"""The page about calibration by group: every number in it is looked up in the table of results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import page_parts
from clinc150_figures import STYLE, save_svg
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from tidy import Table, write_whole

__all__ = ["COLUMNS", "text_table", "write_page"]

COLUMNS = ("training", "seed", "method", "group", "metric")
_SOURCES = ("banking77", "clinc150")
_INK = "#222222"
_LOOKS = {"banking77": ("Banking77, noisy labels", "#d55e00"), "clinc150": ("CLINC150, few rows", "#0072b2")}
_DOT: dict[str, Any] = {"fmt": "o", "markersize": 5.5, "linewidth": 1.2}

_INF, _PLATT = "CTS by source, Γ = inf", "Platt by source, Γ = inf"
_HEAD = """# Groups: one model, two sources

<!-- Written by examples/groups.py from results/groups.csv; do not edit by hand. -->

Algorithm 1 of the paper does not ask that a slice be a class. Where rows come from sources, sites or groups
of people that are known at prediction time, each can have a temperature of its own:

```python
>>> import numpy as np
>>> import hetcal
>>> rng = np.random.default_rng(0)
>>> logits, source = rng.normal(size=(4000, 5)) * 3, np.repeat(["app", "web"], 2000)
>>> true_alpha = np.where(source == "app", 0.5, 2.0)[:, None]
>>> labels = (logits * true_alpha + rng.gumbel(size=logits.shape)).argmax(axis=1)
>>> cal = hetcal.ClassWiseTemperatureScaling(gamma="cv").fit(logits, labels, groups=source)
>>> dict(zip(cal.groups_.tolist(), cal.alpha_.round(1).tolist()))
{'app': 0.5, 'web': 2.0}
>>> probs = cal.predict_proba(logits, groups=source)
>>> bool((probs.argmax(axis=1) == logits.argmax(axis=1)).all())  # no decision changed
True

```

## On real text
"""
_SETTING = """A bank's assistant reads two sources: Banking77 (customers who write; Casanueva et al. 2020,
CC BY 4.0) and the banking and credit-card intents of CLINC150 (people asked for short commands; Larson et
al. 2019, CC BY 3.0). One network learns the 77 + 30 intents of both. Its training rows are taken once as
they are, and once *spoilt*: 30% of Banking77's labels are redrawn at random, and 10% of CLINC150's rows
are kept."""
_COMMAND = """```
python examples/groups.py --data DIR        # DIR, or HETCAL_DATA, holds banking77/ and clinc150/
```
"""
_RULES = """The epoch with the best validation accuracy stands. Calibrators are fitted on clean validation
rows (20 of every intent of CLINC150; 15 of every intent of Banking77, set aside from its training rows)
and judged on the official test rows."""
_FIGURE = "![Gap of each source, and calibration error of the worst source](images/groups.svg)\n"
_READING = """ECE in per cent{over}. In brackets the noise floor: what a perfectly calibrated model with
the same confidences would score by chance."""
_TEXTS = (
    """**One temperature is a compromise.** Confidence − accuracy is {raw_noisy} points on the source with
    noisy labels and {raw_rare} on the one with few rows; after TS it is {ts_noisy} and {ts_rare}. The ECE
    of all rows together is {ts_all}, that of the worst source {ts_worst}.""",
    """**Slices by source mend it** with two temperatures: {cts_noisy} and {cts_rare} points; worst source
    {cts_worst} with Γ = inf and {cv_worst} with "cv" (floor {floor}). Two large groups leave little for Γ
    to do.""",
    """**Slices by predicted class do not**: worst source {class_cv} with "cv", {class_inf} with Γ = inf.
    The model gives {crossed}% of the thinned source's messages to intents of the other, so the predicted
    class does not say where a message came from.""",
    """**What is left on Banking77** is mostly the temperature's own: it minimises NLL, which need not
    match the mean, and is {cts_val} points off on the rows of the fit. Platt scaling has an offset for
    that: {platt_noisy} points on the test rows, worst source {platt_worst}, NLL {platt_nll} in place of
    {cts_nll}.""",
    """**Where nothing is spoilt there is little to mend**: worst source {clean_ts} with TS, {clean_cts}
    by source, floor {clean_floor}.""",
    "Decisions changed by any of these methods in any run: {changed}%.",
)
_JUDGING = """To judge by group, put groups in the place of classes: `hetcal.evaluate(confidence,
right_or_not, names, predicted=group)`; its max-ECE is that of the worst group, with its floor. See
`_by_source` in `examples/groups.py`."""


def text_table(table: Table) -> str:
    """Means over the seeds for the terminal, in per cent; floors in brackets."""
    lines = []
    for training in table.names("training"):
        lines += ["", f"training rows {training}: ECE by source (floor), NLL, decisions changed"]
        for name in table.names("method"):
            key = (training, name)
            cells = "  ".join(
                f"{group} {100 * table.mean(*key, group, 'ece'):5.1f}"
                f" ({100 * table.floor(*key, group, 'ece'):.1f})"
                for group in (*_SOURCES, "worst")
            )
            changed = 100 * table.mean(*key, "all", "changed")
            lines.append(f"  {name:<26}{cells}  NLL {table.mean(*key, 'all', 'nll'):.3f}  {changed:.1f}%")
    return "\n".join(lines)


def write_page(table: Table, docs: Path) -> Path:
    """Write the page and its figure into the folder of the documents; return the page."""
    _draw(table, docs / "images" / "groups.svg")
    n = len(table.names("seed"))
    over = f", mean ± standard deviation over {n} seeds" if n > 1 else ""
    numbers = _numbers(table)
    parts = [
        *(_HEAD, page_parts.paragraph(_SETTING), _COMMAND, page_parts.paragraph(_RULES), _FIGURE),
        page_parts.paragraph(_READING.format(over=over)),
        *(_table(table, training) for training in ("spoilt", "as they are")),
        page_parts.bullets(text.format(**numbers) for text in _TEXTS),
        page_parts.paragraph(_JUDGING),
    ]
    page = docs / "groups.md"
    write_whole(page, "\n".join(parts))
    return page


def _table(table: Table, training: str) -> str:
    rows = []
    for name in table.names("method"):
        key = (training, name)
        accuracy, nll = 100 * table.mean(*key, "all", "accuracy"), table.mean(*key, "all", "nll")
        errors = (
            f"{_spread(table, *key, group, 'ece')} ({100 * table.floor(*key, group, 'ece'):.1f})"
            for group in (*_SOURCES, "worst")
        )
        rows.append([name, f"{accuracy:.1f}", f"{nll:.3f}", *errors])
    head = (f"training rows {training}", "accuracy", "NLL", "Banking77", "CLINC150", "worst source")
    return page_parts.table(head, rows)


def _spread(table: Table, *key: str) -> str:
    text = f"{100 * table.mean(*key):.1f}"
    return text if len(table.values(*key)) == 1 else f"{text} ± {100 * table.std(*key):.1f}"


def _numbers(table: Table) -> dict[str, str]:
    """Numbers of the text by name."""
    trainings, methods = table.names("training"), table.names("method")
    changed = max(table.values(t, m, "all", "changed").max() for t in trainings for m in methods)

    def gap(name: str, group: str, metric: str = "gap") -> str:
        return page_parts.points(table.mean("spoilt", name, group, metric))

    def worst(name: str, training: str = "spoilt") -> str:
        return f"{100 * table.mean(training, name, 'worst', 'ece'):.1f}"

    return {
        "raw_noisy": gap("Uncal", "banking77"),
        "raw_rare": gap("Uncal", "clinc150"),
        "ts_noisy": gap("TS", "banking77"),
        "ts_rare": gap("TS", "clinc150"),
        "ts_all": f"{100 * table.mean('spoilt', 'TS', 'all', 'ece'):.1f}",
        "ts_worst": worst("TS"),
        "cts_noisy": gap(_INF, "banking77"),
        "cts_rare": gap(_INF, "clinc150"),
        "cts_val": gap(_INF, "banking77", "val_gap"),
        "cts_worst": worst(_INF),
        "cts_nll": f"{table.mean('spoilt', _INF, 'all', 'nll'):.3f}",
        "cv_worst": worst("CTS by source, cv"),
        "floor": f"{100 * table.floor('spoilt', _INF, 'worst', 'ece'):.1f}",
        "platt_noisy": gap(_PLATT, "banking77"),
        "platt_worst": worst(_PLATT),
        "platt_nll": f"{table.mean('spoilt', _PLATT, 'all', 'nll'):.3f}",
        "crossed": f"{100 * table.mean('spoilt', 'Uncal', 'clinc150', 'crossed'):.0f}",
        "class_cv": worst("CTS by class, cv"),
        "class_inf": worst("CTS by class, Γ = inf"),
        "clean_ts": worst("TS", "as they are"),
        "clean_cts": worst(_INF, "as they are"),
        "clean_floor": f"{100 * table.floor('as they are', 'TS', 'worst', 'ece'):.1f}",
        "changed": f"{100 * changed:.1f}".replace("0.0", "0"),
    }


def _draw(table: Table, path: Path) -> None:
    """Gap of each source on the left; ECE of the worst source, with its floor, on the right."""
    names = table.names("method")
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9.4, 3.3), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        _draw_gaps(left, table, names)
        _draw_worst(right, table, names)
        left.set_yticks(range(len(names)), names)
        left.invert_yaxis()
        for ax in (left, right):
            ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False, borderaxespad=0.2)
        save_svg(figure, path)


def _draw_gaps(ax: Axes, table: Table, names: list[str]) -> None:
    at, ends = np.arange(len(names)), []
    for source, (label, colour) in _LOOKS.items():
        keys = [("spoilt", name, source, "gap") for name in names]
        mean, std = (np.array([100 * f(*key) for key in keys]) for f in (table.mean, table.std))
        ax.errorbar(mean, at, xerr=std, label=label, color=colour, zorder=3, **_DOT)
        ends.append(mean)
    ax.hlines(at, *ends, color="#bbbbbb", linewidth=2, zorder=2)
    ax.axvline(0, color=_INK, linewidth=0.9, zorder=1)
    ax.set_xlabel("confidence − accuracy (points)")


def _draw_worst(ax: Axes, table: Table, names: list[str]) -> None:
    at, keys = np.arange(len(names)), [("spoilt", name, "worst", "ece") for name in names]
    mean, std, floor = (
        np.array([100 * f(*key) for key in keys]) for f in (table.mean, table.std, table.floor)
    )
    ax.errorbar(mean, at, xerr=std, label="worst source", color=_INK, **_DOT)
    ax.plot(floor, at, "|", color="#888888", markersize=13, markeredgewidth=2, label="noise floor")
    ax.set_xlim(left=0)
    ax.set_xlabel("ECE of the worst source (%)")
