"""Charts of the page: compiled Vega specifications and the script that draws them.

The specifications are package data written by ``tools/build_charts.py``. The script comes from the
installed vl-convert. Bundling it takes more than a second, so the result is stored in the user's cache.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import sys
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import numpy as np

from hetcal._extras import missing_package
from hetcal._write import write_atomic
from hetcal.report.data import ReportData

__all__ = ["MANY", "chart_signals", "chart_specs", "temperature_range", "vega_runtime"]

MANY = 60  # number of classes above which marks are small and the gaps after calibration are not drawn
_SNIPPET = "window.vegaEmbed = vegaEmbed;"
_TRIMMED = 200  # with more classes, intervals that reach far out are cut off to keep the rest readable


def chart_specs(data: ReportData) -> dict[str, dict[str, Any]]:
    """Vega specification of each chart for which the report has enough data."""
    text = (resources.files("hetcal.report") / "static" / "charts.json").read_text(encoding="utf-8")
    specs: dict[str, dict[str, Any]] = json.loads(text)["charts"]
    temperatures_many = specs.pop("temperatures_many")
    if len(data.names) > MANY:
        specs["temperatures"] = temperatures_many
    if data.training is None:
        del specs["training"]
    if data.settling.undecided - data.settling.unseen < 2:
        del specs["settling"]
    return specs


def chart_signals(data: ReportData) -> dict[str, dict[str, float | bool]]:
    """Values of the Vega signals that depend on the data, by chart."""
    predicted = [c for c in data.diagnosis.classes if c.n > 0]
    many = len(data.names) > MANY
    gap_low, gap_high = _gap_range(data)
    lowest = min(min(c.confidence, c.accuracy) for c in predicted)
    reach = float(data.path.gamma[-2]) or 1.0
    t_low, t_high = temperature_range(data)
    chosen = min(data.path.chosen, reach) if data.path.chosen < float("inf") else 0.0
    return {
        "gaps": {"gap_low": gap_low, "gap_high": gap_high, "many": many},
        "map": {
            "map_low": max(-0.02, int(lowest * 20) / 20 - 0.025),
            "most_rows": max(c.n for c in predicted),
            "largest_area": 140 if len(predicted) > MANY else 420,
        },
        "temperatures": {
            "reach": reach,
            "t_low": t_low,
            "t_high": t_high,
            "chosen_gamma": chosen,
            "labelled": not many,
            "opacity": max(0.1, min(0.6, 60 / len(data.names))),
        },
    }


def temperature_range(data: ReportData) -> tuple[float, float]:
    """Range of the temperature axis.

    It includes 1 and nearly all temperatures of the classes whose separate fit is not at a bound of the
    search range. Temperatures of other classes may be outside.
    """
    path = data.path
    finite = (path.n_fit > 0) & ~path.at_bound
    t = 1 / (path.alpha[:, finite] if finite.any() else path.alpha0)
    tail = 0.002 if len(data.names) > MANY else 0.0
    low, high = (float(np.quantile(t, q)) for q in (tail, 1 - tail))
    return round(min(0.95, 0.94 * low), 4), round(max(1.05, 1.06 * high), 4)


@functools.cache
def vega_runtime() -> str:
    """Vega as one script that needs no network and defines ``vegaEmbed``."""
    try:
        version = metadata.version("vl-convert-python")
    except metadata.PackageNotFoundError:
        version = "unknown"
    snippet_hash = hashlib.sha256(_SNIPPET.encode()).hexdigest()[:8]
    folder = _cache_folder()
    if folder is None:
        return _in_function(_bundle_vega())
    path = folder / f"vega-{version}-{snippet_hash}.js"
    bundle = _read_cached(path)
    if bundle is None:
        bundle = _bundle_vega()
        content = f"{_checksum_line(bundle)}\n{bundle}".encode()
        with contextlib.suppress(OSError):  # a cache that cannot be written only costs time
            folder.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)  # a link or pipe is replaced, not written to
            write_atomic(path, lambda file: file.write(content), durable=False)
    return _in_function(bundle)


def _in_function(bundle: str) -> str:
    """Wrap the script in a function, whose scope keeps its global names private."""
    return f"(() => {{{bundle}\n}})();"


def _read_cached(path: Path) -> str | None:
    """Bundle in the cache, or None if it is missing, damaged or not a regular file."""
    if path.is_symlink() or not path.is_file():  # reading a pipe would block; a link may lead to any file
        return None
    try:
        checksum, _, bundle = path.read_text(encoding="utf-8").partition("\n")
    except (OSError, UnicodeDecodeError):
        return None
    return bundle if checksum == _checksum_line(bundle) else None


def _checksum_line(bundle: str) -> str:
    return f"// sha256 {hashlib.sha256(bundle.encode()).hexdigest()}"


def _bundle_vega() -> str:
    try:
        import vl_convert
    except ImportError:
        raise missing_package("HTML reports need vl-convert-python", "report") from None
    return str(vl_convert.javascript_bundle(_SNIPPET))


def _cache_folder() -> Path | None:
    """Folder for cached files; None if neither the environment nor a home directory determines it."""
    base = {"win32": "LOCALAPPDATA"}.get(sys.platform, "XDG_CACHE_HOME")
    try:
        return Path(os.environ.get(base) or Path("~/.cache").expanduser()) / "hetcal"
    except RuntimeError:  # a user without an entry in the password database, as in some containers
        return None


def _gap_range(data: ReportData) -> tuple[float, float]:
    """Range of the gap axis; with more than 200 classes, intervals that reach far out are cut off."""
    predicted = [c for c in data.diagnosis.classes if c.n > 0]
    tail = 0.03 if len(predicted) > _TRIMMED else 0.0
    gaps = [c.signed_gap for c in predicted]
    if len(predicted) <= MANY:
        gaps += [c.signed_gap for c in data.diagnosis_after.classes if c.n > 0]
    low = min(0.0, *gaps, float(np.quantile([c.gap_low for c in predicted], tail)))
    high = max(0.0, *gaps, float(np.quantile([c.gap_high for c in predicted], 1 - tail)))
    margin = 0.03 * (high - low) or 0.05
    return round(low - margin, 4), round(high + margin, 4)
