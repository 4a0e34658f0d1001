"""Write the page about calibration by group. Every number in it comes from the table of results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import page_parts
from clinc150_figures import STYLE, save_svg
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from tidy import Table, write_atomic

from hetcal._palette import GREY, INK, PALETTE

__all__ = ["COLUMNS", "text_table", "write_page"]

COLUMNS = ("training", "seed", "method", "group", "metric")
_SOURCES = ("banking77", "clinc150")
_STYLES = {
    "banking77": ("Banking77, noisy labels", PALETTE["vermilion"]),
    "clinc150": ("CLINC150, few rows", PALETTE["blue"]),
}
_MARKER: dict[str, Any] = {"fmt": "o", "markersize": 5.5, "linewidth": 1.2}

_INF, _PLATT = "CTS by source, Γ = inf", "Platt by source, Γ = inf"
_HEAD = """# Calibrate per group

<!-- Written by examples/groups.py from results/groups.csv; do not edit by hand. -->

This guide shows how to calibrate by group instead of by class, first on synthetic data and then on real text.
Use groups if rows come from different sources, sites or groups of people, and the group of every row is known
at prediction time. Pass the groups as `groups=` to `fit` and `predict_proba`:

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
>>> bool((probs.argmax(axis=1) == logits.argmax(axis=1)).all())  # no prediction changed
True

```

## Example: one model, two sources of text
"""
_SETTING = """A bank's assistant reads two sources: Banking77 (messages from customers; Casanueva et al. 2020,
CC BY 4.0) and the banking and credit-card intents of CLINC150 (short commands; Larson et al. 2019,
CC BY 3.0). One network learns all 107 intents, 77 of Banking77 and 30 of CLINC150. We train it once on the
*unmodified* rows and once on *corrupted* rows: 30% of Banking77's labels are replaced by random labels, and
only 10% of CLINC150's rows are kept."""
_COMMAND = """```
python examples/groups.py --data DIR        # DIR, or HETCAL_DATA, contains banking77/ and clinc150/
```
"""
_PROTOCOL = (
    """We use the epoch with the best validation accuracy. Calibrators are fitted on clean validation rows,
    20 per intent of CLINC150 and 15 per intent of Banking77. Banking77 has no validation split, so we take
    these rows from its training rows. Calibrators are evaluated on the official test rows.""",
    """*Uncal* is the uncalibrated model, and *TS* is one temperature for all rows. *CTS* is one temperature
    per predicted class or per source. [Γ](gamma.md) limits how much these temperatures may differ: Γ = inf is
    no limit, and *cv* chooses Γ by cross-validation. *Platt* is Platt scaling of the confidence. NLL is the
    negative log-likelihood, and ECE is the expected calibration error.""",
)
_FIGURE = "![Gap of each source, and calibration error of the worst source](images/groups.svg)\n"
_READING = """The tables show accuracy and NLL of all rows, and the ECE of each source in percent{over}.
*Worst source* is the larger of the two ECEs of a seed, so its mean can exceed both means. The
[noise floor](noise-floors.md) is in parentheses: it is the average score of a perfectly calibrated model with
the same confidences."""
_TEXTS = (
    """**One temperature is a compromise.** With corrupted training rows and before calibration, the gap
    (confidence − accuracy) is {raw_noisy} points on Banking77, the source with noisy labels, and {raw_rare}
    on CLINC150, the source with few rows. After TS, it is
    {ts_noisy} and {ts_rare}. The ECE of all rows is {ts_all}, but the ECE of the worst source is
    {ts_worst}.""",
    """**One temperature per source largely corrects this**: the gaps are {cts_noisy} and {cts_rare}
    points. The ECE of the worst source is {cts_worst} with Γ = inf and {cv_worst} with "cv" (floor
    {floor}). With two large groups, the choice of Γ matters little.""",
    """**One temperature per predicted class does not help**: the ECE of the worst source is {class_cv} with
    "cv" and {class_inf} with Γ = inf. The model assigns {crossed}% of the messages from CLINC150 to intents
    of Banking77, so the predicted class does not identify the source.""",
    """**The remaining error on Banking77** is mostly a limitation of temperature scaling. It minimises
    the NLL, which does not guarantee the right mean confidence: even on the rows it was fitted on, the gap
    is {cts_val} points. Platt scaling also fits an offset: the gap on the test rows is {platt_noisy} points,
    the ECE of the worst source is {platt_worst}, and the NLL is {platt_nll} instead of {cts_nll}.""",
    """**Without corruption, there is little to correct**: the ECE of the worst source is {clean_ts} with
    TS and {clean_cts} with CTS by source (Γ = inf); the floor is {clean_floor}.""",
    "In all runs, these methods change {changed}% of the predictions.",
)
_EVALUATION = """To evaluate by group, treat groups as classes:
`hetcal.evaluate(confidence, outcome, names, predicted=group)`. The arrays `confidence` and `group` contain
the confidence and the group number of every row. `names` is the list of the group names. hetcal counts a row
as correct if `outcome` equals `group`, so set `outcome` to the group of the row if the prediction is right,
and to any other group if it is wrong. The max-ECE of the result is the ECE of the worst group. See
`_by_source` in `examples/groups.py`."""


def text_table(table: Table) -> str:
    """Return the means over the seeds as text, in percent, with floors in parentheses."""
    lines = []
    for training in table.names("training"):
        lines += ["", f"{training} training rows: ECE by source (floor), NLL, predictions changed"]
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
    """Write the page and its figure into the documentation folder and return the path of the page."""
    _draw(table, docs / "images" / "groups.svg")
    n = len(table.names("seed"))
    over = f", mean ± standard deviation over {n} seeds" if n > 1 else ""
    numbers = _numbers(table)
    parts = [
        *(_HEAD, page_parts.paragraph(_SETTING), _COMMAND, *map(page_parts.paragraph, _PROTOCOL), _FIGURE),
        page_parts.paragraph(_READING.format(over=over)),
        *(_table(table, training) for training in ("corrupted", "unmodified")),
        page_parts.bullets(text.format(**numbers) for text in _TEXTS),
        page_parts.paragraph(_EVALUATION),
    ]
    page = docs / "groups.md"
    write_atomic(page, "\n".join(parts))
    return page


def _table(table: Table, training: str) -> str:
    rows = []
    for name in table.names("method"):
        key = (training, name)
        accuracy, nll = 100 * table.mean(*key, "all", "accuracy"), table.mean(*key, "all", "nll")
        errors = (
            f"{_mean_and_std(table, *key, group, 'ece')} ({100 * table.floor(*key, group, 'ece'):.1f})"
            for group in (*_SOURCES, "worst")
        )
        rows.append([name, f"{accuracy:.1f}", f"{nll:.3f}", *errors])
    head = (f"{training} training rows", "accuracy", "NLL", "Banking77", "CLINC150", "worst source")
    return page_parts.table(head, rows)


def _mean_and_std(table: Table, *key: str) -> str:
    text = f"{100 * table.mean(*key):.1f}"
    return text if len(table.values(*key)) == 1 else f"{text} ± {100 * table.std(*key):.1f}"


def _numbers(table: Table) -> dict[str, str]:
    """Return the numbers of the text by name."""
    trainings, methods = table.names("training"), table.names("method")
    changed = max(table.values(t, m, "all", "changed").max() for t in trainings for m in methods)

    def gap(name: str, group: str, metric: str = "gap") -> str:
        return page_parts.points(table.mean("corrupted", name, group, metric))

    def worst(name: str, training: str = "corrupted") -> str:
        return f"{100 * table.mean(training, name, 'worst', 'ece'):.1f}"

    return {
        "raw_noisy": gap("Uncal", "banking77"),
        "raw_rare": gap("Uncal", "clinc150"),
        "ts_noisy": gap("TS", "banking77"),
        "ts_rare": gap("TS", "clinc150"),
        "ts_all": f"{100 * table.mean('corrupted', 'TS', 'all', 'ece'):.1f}",
        "ts_worst": worst("TS"),
        "cts_noisy": gap(_INF, "banking77"),
        "cts_rare": gap(_INF, "clinc150"),
        "cts_val": gap(_INF, "banking77", "val_gap"),
        "cts_worst": worst(_INF),
        "cts_nll": f"{table.mean('corrupted', _INF, 'all', 'nll'):.3f}",
        "cv_worst": worst("CTS by source, cv"),
        "floor": f"{100 * table.floor('corrupted', _INF, 'worst', 'ece'):.1f}",
        "platt_noisy": gap(_PLATT, "banking77"),
        "platt_worst": worst(_PLATT),
        "platt_nll": f"{table.mean('corrupted', _PLATT, 'all', 'nll'):.3f}",
        "crossed": f"{100 * table.mean('corrupted', 'Uncal', 'clinc150', 'crossed'):.0f}",
        "class_cv": worst("CTS by class, cv"),
        "class_inf": worst("CTS by class, Γ = inf"),
        "clean_ts": worst("TS", "unmodified"),
        "clean_cts": worst(_INF, "unmodified"),
        "clean_floor": f"{100 * table.floor('unmodified', 'TS', 'worst', 'ece'):.1f}",
        "changed": f"{100 * changed:.1f}".replace("0.0", "0"),
    }


def _draw(table: Table, path: Path) -> None:
    """Draw the gap of each source (left) and the ECE of the worst source with its floor (right)."""
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
    positions, means = np.arange(len(names)), []
    for source, (label, colour) in _STYLES.items():
        keys = [("corrupted", name, source, "gap") for name in names]
        mean, std = (np.array([100 * f(*key) for key in keys]) for f in (table.mean, table.std))
        ax.errorbar(mean, positions, xerr=std, label=label, color=colour, zorder=3, **_MARKER)
        means.append(mean)
    ax.hlines(positions, *means, color=PALETTE["grey"], linewidth=2, zorder=2)
    ax.axvline(0, color=INK, linewidth=0.9, zorder=1)
    ax.set_xlabel("confidence − accuracy (points)")


def _draw_worst(ax: Axes, table: Table, names: list[str]) -> None:
    positions, keys = np.arange(len(names)), [("corrupted", name, "worst", "ece") for name in names]
    mean, std, floor = (
        np.array([100 * f(*key) for key in keys]) for f in (table.mean, table.std, table.floor)
    )
    ax.errorbar(mean, positions, xerr=std, label="worst source", color=INK, **_MARKER)
    ax.plot(floor, positions, "|", color=GREY, markersize=13, markeredgewidth=2, label="noise floor")
    ax.set_xlim(left=0)
    ax.set_xlabel("ECE of the worst source (%)")
