"""A report as one self-contained HTML page."""

from __future__ import annotations

import base64
import hashlib
import json
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetcal import _format
from hetcal._display import display_name
from hetcal._extras import missing_package
from hetcal._palette import PALETTE
from hetcal.diagnosis import ClassDiagnosis, Diagnosis, Verdict
from hetcal.metrics.binning import Cells
from hetcal.report import sentences
from hetcal.report.data import FLOORED, Finding, ReportData
from hetcal.report.vega import MANY, chart_signals, chart_specs, temperature_range, vega_runtime

__all__ = ["inline_json", "page_payload", "to_html"]

# Verdict -> name of its CSS class and colour
KINDS = {
    Verdict.OVER_CONFIDENT: "over",
    Verdict.UNDER_CONFIDENT: "under",
    Verdict.CONSISTENT: "fine",
    Verdict.TOO_FEW_ROWS: "few",
}
# Colours of both themes by CSS variable. Hues stand for verdicts; everything else is grey.
LIGHT = {
    "paper": "#ffffff", "wash": "#f5f6f7", "ink": "#1c2226", "muted": "#5d6870",
    "line": "#e4e7e9", "line-strong": "#c3c9cd", "band": "#e6e9eb", "bar": "#b9c3ca",
    "over": PALETTE["vermilion"], "under": PALETTE["blue"], "fine": PALETTE["green"], "few": "#9a9a9a",
    "over-text": "#b34e00", "under-text": "#00629a",
}  # fmt: skip
DARK = {
    "paper": "#14181b", "wash": "#1c2226", "ink": "#e9ecee", "muted": "#a3adb4",
    "line": "#2a3136", "line-strong": "#4a545b", "band": "#2a3237", "bar": "#5a666e",
    "over": "#f28a3d", "under": PALETTE["sky"], "fine": "#35c493", "few": "#8d969c",
    "over-text": "#f5a160", "under-text": "#7cc6f0",
}  # fmt: skip

_METRICS = {"ece": "ECE", "avg_ece": "Avg-ECE", "max_ece": "max-ECE"}
# Sections in the navigation: id -> title; "groups" is left out if the rows have no groups
_SECTIONS = {
    "classes": "Classes",
    "numbers": "Numbers",
    "remedy": "Fix",
    "reliability": "Reliability",
    "map": "Map",
    "methods": "Methods",
    "temperatures": "Temperatures",
    "groups": "Groups",
    "training": "Causes",
    "settling": "More rows",
    "how": "Details",
}
# Columns of the table of classes: header -> whether the column contains text
_COLUMNS = {
    "Class": True, "Gap": False, "Verdict": True, "95% interval": False, "Rows": False, "Accuracy": False,
    "Confidence": False, "ECE": False, "Floor": False, "ECE after": False, "T": False,
}  # fmt: skip
_DIGITS = 4  # decimals of most numbers in the charts
# With more classes, the chart of gaps fills the window, so the legend is placed above the chart, not below.
_LONG_CHART = 20
_MAX_NAME = 120  # maximum length of a class name; charts truncate it further to the available width


def to_html(data: ReportData) -> str:
    """Return the report as an HTML page."""
    runtime, script = vega_runtime(), _static("page.js")
    specs = chart_specs(data)
    text: str = _environment().get_template("page.html.j2").render(
        data=data,
        sentences=sentences,
        kinds=KINDS,
        many=MANY,
        charts=set(specs),
        sections={key: title for key, title in _SECTIONS.items() if key != "groups" or data.groups},
        columns=_COLUMNS | ({"More rows": False} if data.settling.undecided else {}),
        legend_first=len(data.names) > _LONG_CHART,
        needs_remedy=data.calibration_helps and data.finding is not Finding.NOTHING,
        classes=_class_rows(data),
        css=_css(),
        runtime=runtime,
        script=script,
        hashes=" ".join(f"'{_script_hash(text)}'" for text in (runtime, script)),
        payload=inline_json(page_payload(data)),
        specs=inline_json(specs),
    )  # fmt: skip
    return text


def page_payload(data: ReportData) -> dict[str, Any]:
    """Data of the charts, such as the values and bins of every class, the methods and the temperatures."""
    classes, kinds = data.diagnosis.classes, list(KINDS)
    return {
        "names": [display_name(name, _MAX_NAME) for name in data.labels],
        "kind": [kinds.index(c.kind) for c in classes],
        "kinds": list(KINDS.values()),
        "verdicts": kinds,
        "order": [c.index for c in data.by_gap if c.n],
        "explanations": {c.index: text for c in classes if (text := sentences.explanation(data, c))},
        **_columns(data.diagnosis, ""),
        **_columns(data.diagnosis_after, "After"),
        "noise": _rounded(data.gap_noise),
        "train": None if data.training is None else _rounded(data.training.counts),
        "nBins": data.settings.n_bins,
        "bins": [_bins(data.cells), _bins(data.cells_after)],
        "whole": [_bins(data.cells.merged())[0], _bins(data.cells_after.merged())[0]],
        "metrics": _METRICS,
        "methods": [_method(data, i) for i in range(len(data.methods))],
        "path": _path(data),
        "signals": chart_signals(data),
        "settling": sorted(c.rows_needed * data.diagnosis.n / c.n for c in classes if c.rows_needed and c.n),
    }


def inline_json(value: Any) -> str:
    """ASCII JSON that is safe inside a script element: ``<``, ``>`` and ``&`` are escaped."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _environment() -> Any:
    try:
        import jinja2
    except ImportError:
        raise missing_package("HTML reports need jinja2", "report") from None
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("hetcal.report", "static"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {
        "percent": _format.percent,
        "points": _format.points,
        "number": _format.number,
        "share": _format.share,
        "short": display_name,
        "thousands": "{:,}".format,
    }
    return environment


def _static(name: str) -> str:
    return (resources.files("hetcal.report") / "static" / name).read_text(encoding="utf-8")


def _css() -> str:
    light, dark = (
        "".join(f"--{name}:{colour};" for name, colour in theme.items()) for theme in (LIGHT, DARK)
    )
    themes = (
        f":root{{color-scheme:light dark;{light}}}\n"
        f"@media (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"
        f"@media print{{:root{{{light}}}}}\n"
    )
    return themes + _static("page.css")


def _script_hash(script: str) -> str:
    """Hash with which a content security policy allows this script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _class_rows(data: ReportData) -> list[dict[str, Any]]:
    """Rows of the table of classes, in the order of the chart of gaps."""
    return [
        {
            "diagnosis": c,
            "after": data.diagnosis_after.classes[c.index],
            "kind": KINDS[c.kind],
            "explanation": sentences.explanation(data, c) or _noise_condition(data, c),
            "temperature": _temperature(data, c.index),
        }
        for c in data.by_gap
    ]


def _noise_condition(data: ReportData, c: ClassDiagnosis) -> str | None:
    """Text that says up to which share of wrong labels the verdict "over-confident" on a class holds.

    None for classes with other verdicts, or if `data.sensitivity` is None.
    """
    if data.sensitivity is None or c.kind is not Verdict.OVER_CONFIDENT:
        return None
    return data.sensitivity.condition(c.index)


def _temperature(data: ReportData, k: int) -> str:
    """Temperature fitted to a class separately, as text.

    If it is at a bound of the search range, it is shown as approaching 0 or ∞. If no row of the fit is
    predicted as the class, a dash is shown.
    """
    alpha = data.path.alpha[-1, k]
    if not data.path.n_fit[k]:
        return "–"
    if data.path.at_bound[k]:
        return "→ 0" if alpha > 1 else "→ ∞"
    return f"{1 / alpha:.2f}"


def _columns(diagnosis: Diagnosis, suffix: str) -> dict[str, list[Any]]:
    fields = {"n": "n", "acc": "accuracy", "conf": "confidence", "gap": "signed_gap"}
    fields |= {"ece": "ece", "floor": "floor"}
    if not suffix:
        fields |= {"low": "gap_low", "high": "gap_high", "need": "rows_needed"}
    return {
        key + suffix: _rounded([getattr(c, name) for c in diagnosis.classes]) for key, name in fields.items()
    }


def _rounded(values: Any) -> list[Any]:
    """Plain rounded numbers; None replaces nan, and floats without a fraction become integers."""
    array: NDArray[Any] = np.asarray(values)
    if array.dtype.kind in "iu":
        return list(array.tolist())
    rounded = np.round(array.astype(np.float64), _DIGITS).tolist()
    return [None if v != v else int(v) if v == int(v) else v for v in rounded]


def _bins(cells: Cells) -> list[list[Any]]:
    """Non-empty bins of each class, or of all rows, as a flat list: bin, rows, confidence, accuracy, ..."""
    slices = []
    for count, confidence, correct in zip(cells.count, cells.confidence, cells.correct, strict=True):
        used = np.flatnonzero(count)
        n = count[used]
        columns = (used, n.astype(np.int64), confidence[used] / n, correct[used] / n)
        slices.append([v for row in zip(*(_rounded(c) for c in columns), strict=True) for v in row])
    return slices


def _method(data: ReportData, i: int) -> dict[str, Any]:
    row, e = data.methods[i], data.methods[i].evaluation
    return {
        "name": row.name,
        "recommended": i == len(data.methods) - 1,
        "value": {m: round(getattr(e, m), 5) for m in FLOORED},
        "floor": {m: round(e.floor[m], 5) for m in FLOORED},
        "classEce": _rounded(e.classes.ece),
        "classFloor": _rounded(e.classes.floor),
    }


def _path(data: ReportData) -> dict[str, Any]:
    """Data of the chart of temperatures over Γ.

    They are the position ``x`` of each Γ, the ``range`` of the temperature axis, and the temperatures ``t``
    of each class. A class has None instead if no row of the fit is predicted as this class.
    """
    path = data.path
    reach = float(path.gamma[-2]) or 1.0
    x = [*path.gamma[:-1].tolist(), 1.1 * reach]
    t = 1 / path.alpha.T
    return {
        "x": [round(v, 5) for v in x],
        "range": temperature_range(data),
        "t": [_rounded(t[k]) if path.n_fit[k] else None for k in range(len(t))],
    }
