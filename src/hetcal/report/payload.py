"""The numbers that the page's charts draw, as compact JSON that is safe inside a script element."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetcal._display import display_name
from hetcal.diagnosis import Diagnosis
from hetcal.metrics.binning import Cells
from hetcal.report.class_charts import KINDS, temperature_range
from hetcal.report.data import FLOORED, ReportData

__all__ = ["METRICS", "inline_json", "page_payload"]

METRICS = {"ece": "ECE", "avg_ece": "Avg-ECE", "max_ece": "max-ECE"}
_DIGITS = 4
_LONGEST = 120  # characters of a class name in a chart, which cuts it to the pixels it has


def page_payload(data: ReportData) -> dict[str, Any]:
    """Columns of numbers by class, bins by class, methods and paths."""
    classes = data.diagnosis.classes
    kinds = list(KINDS)
    return {
        "names": [display_name(name, _LONGEST) for name in data.labels],
        "kind": [kinds.index(c.kind) for c in classes],
        "kinds": list(KINDS.values()),
        "verdicts": kinds,
        **_columns(data.diagnosis, ""),
        **_columns(data.diagnosis_after, "After"),
        "noise": _plain(data.gap_noise),
        "train": None if data.training is None else _plain(data.training.counts),
        "nBins": data.settings.n_bins,
        "bins": [_bins(data.cells), _bins(data.cells_after)],
        "whole": [_bins(data.cells.merged())[0], _bins(data.cells_after.merged())[0]],
        "metrics": METRICS,
        "methods": [_method(data, i) for i in range(len(data.methods))],
        "path": _path(data),
        "settling": sorted(c.rows_needed * data.diagnosis.n / c.n for c in classes if c.rows_needed and c.n),
    }


def inline_json(value: Any) -> str:
    """JSON in ASCII that no parser of HTML can take for a tag: ``<``, ``>`` and ``&`` are escaped."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _columns(diagnosis: Diagnosis, suffix: str) -> dict[str, list[Any]]:
    keys = {
        "n": "n",
        "acc": "accuracy",
        "conf": "confidence",
        "gap": "signed_gap",
        "ece": "ece",
        "floor": "floor",
    }
    if not suffix:
        keys |= {"low": "gap_low", "high": "gap_high", "need": "rows_needed"}
    return {key + suffix: _plain([getattr(c, name) for c in diagnosis.classes]) for key, name in keys.items()}


def _plain(values: Any) -> list[Any]:
    """Plain rounded numbers; None in place of nan, integers without a point."""
    array: NDArray[Any] = np.asarray(values)
    if array.dtype.kind in "iu":
        return list(array.tolist())
    out = np.round(array.astype(np.float64), _DIGITS).tolist()
    return [None if v != v else int(v) if v == int(v) else v for v in out]


def _bins(cells: Cells) -> list[list[Any]]:
    """For every slice the bins that hold rows, flat: bin, rows, mean confidence, accuracy, and so on."""
    out = []
    for count, confidence, correct in zip(cells.count, cells.confidence, cells.correct, strict=True):
        used = np.flatnonzero(count)
        n = count[used]
        columns = (used, n.astype(np.int64), confidence[used] / n, correct[used] / n)
        out.append([v for row in zip(*(_plain(c) for c in columns), strict=True) for v in row])
    return out


def _method(data: ReportData, i: int) -> dict[str, Any]:
    row, e = data.methods[i], data.methods[i].evaluation
    return {
        "name": row.name,
        "recommended": i == len(data.methods) - 1,
        "value": {m: round(getattr(e, m), 5) for m in FLOORED},
        "floor": {m: round(e.floor[m], 5) for m in FLOORED},
        "classEce": _plain(e.classes.ece),
        "classFloor": _plain(e.classes.floor),
    }


def _path(data: ReportData) -> dict[str, Any]:
    """Temperatures by class over Γ; None for classes without rows, which only follow the centre."""
    path = data.path
    reach = float(path.gamma[-2]) or 1.0
    x = [*path.gamma[:-1].tolist(), 1.1 * reach]
    t = 1 / path.alpha.T
    return {
        "x": [round(v, 5) for v in x],
        "range": temperature_range(data),
        "t": [_plain(t[k]) if path.n_fit[k] else None for k in range(len(t))],
    }
