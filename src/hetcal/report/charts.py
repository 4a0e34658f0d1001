"""The charts of the page: Altair specifications, compiled to Vega, whose rows the page fills in.

Colours are CSS variables, so that one chart serves the light scheme, the dark scheme and print. The page
sets the parameters ``picked`` (number of the class that was clicked, or -1), ``room`` (width in pixels) and
``top`` (end of an axis).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from hetcal.report.class_charts import gaps, name_points, scatter, temperatures, training
from hetcal.report.data import ReportData

__all__ = ["chart_specs", "vega_runtime"]

_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
_HINT = 'the page needs {name}; install it with: pip install "hetcal[report]"'
_AXIS = {
    "labelColor": "var(--muted)",
    "titleColor": "var(--muted)",
    "gridColor": "var(--line)",
    "tickColor": "var(--line)",
    "domain": False,
    "ticks": False,
    "labelFontSize": 12,
    "labelFont": _FONT,
    "labelPadding": 6,
    "labelFlush": False,
    "titleFontSize": 12,
    "titleFont": _FONT,
    "titleFontWeight": "normal",
    "titlePadding": 10,
}
_SPLIT_TICKS = [0, 0.2, 0.4, 0.6, 0.8, 1]


def chart_specs(data: ReportData) -> dict[str, dict[str, Any]]:
    """Vega specifications by the name of the chart."""
    alt, compiler = _altair(), _vl_convert()
    chosen = dict(_CHARTS)
    if data.training is None:
        del chosen["training"]
    if data.settling.undecided - data.settling.unseen < 2:
        del chosen["settling"]
    specs = {name: compiler.vegalite_to_vega(_styled(make(alt, data))) for name, make in chosen.items()}
    name_points(specs["map"], _FONT)
    return specs


@functools.cache
def vega_runtime() -> str:
    """Vega as one script that needs nothing from the network; it defines ``vegaEmbed``."""
    bundle = _vl_convert().javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return f"(() => {{{bundle}\n}})();"  # its hundreds of short names stay its own


def _altair() -> Any:
    try:
        import altair
    except ImportError:
        raise ImportError(_HINT.format(name="altair")) from None
    return altair


def _vl_convert() -> Any:
    try:
        import vl_convert
    except ImportError:
        raise ImportError(_HINT.format(name="vl-convert-python")) from None
    return vl_convert


def _styled(chart: Any) -> dict[str, Any]:
    spec: dict[str, Any] = chart.to_dict()
    spec["config"] = {
        "aria": False,  # the page describes each chart as a whole
        "axis": _AXIS,
        "background": "transparent",
        "font": _FONT,
        "text": {"fill": "var(--ink)", "fontSize": 12, "font": _FONT},
        "view": {"stroke": None},
    }
    spec["autosize"] = {"type": "fit", "contains": "padding"}
    spec["padding"] = {"left": 2, "right": 14, "top": 8, "bottom": 4}
    return spec


def _rows(alt: Any) -> Any:
    return alt.Chart(alt.NamedData(name="rows"))


def _error_axis(alt: Any) -> dict[str, Any]:
    """Axis of calibration errors from 0 to the parameter ``top``."""
    # Room for the labels of long bars may take the axis beyond 100%, which no error reaches.
    percent = "datum.value > 1 ? '' : format(datum.value, '.0%')"
    return {
        "title": "calibration error",
        "axis": alt.Axis(labelExpr=percent, tickCount=alt.ExprRef("room < 480 ? 4 : 5")),
        "scale": alt.Scale(domain=[0, alt.ExprRef("top")], nice=False),
    }


def _metric_axis(alt: Any) -> Any:
    limit = alt.ExprRef("room < 480 ? 72 : 130")
    return alt.Axis(labelLimit=limit, labelFontSize=13, labelPadding=12, labelColor="var(--ink)", grid=False)


def _sized(alt: Any, *layers: Any) -> Any:
    parameters = [alt.param(name="room", value=600), alt.param(name="top", value=1)]
    return alt.layer(*layers).add_params(*parameters).properties(width=600, height=300)


def _effect(alt: Any, data: ReportData) -> Any:  # noqa: ARG001
    """Before to after, metric by metric, with the floor."""
    base = _rows(alt).encode(y=alt.Y("metric:N", sort=None, title=None, axis=_metric_axis(alt)))
    x = _error_axis(alt)
    line = base.mark_rule(strokeWidth=2, stroke="var(--line-strong)")
    floor = base.mark_tick(thickness=2, size=26, color="var(--ink)", opacity=0.75)
    before = base.mark_circle(size=150, opacity=1, color="var(--few)")
    after = base.mark_circle(size=190, opacity=1, color="var(--accent)")
    before_text = base.mark_text(dy=-16, fill="var(--muted)")
    after_text = base.mark_text(dy=19, fontWeight="bold")
    return _sized(
        alt,
        line.encode(x=alt.X("before:Q", **x), x2="after:Q"),
        floor.encode(x=alt.X("floor:Q", **x)),
        before.encode(x=alt.X("before:Q", **x)),
        after.encode(x=alt.X("after:Q", **x)),
        before_text.encode(x=alt.X("before:Q", **x), text="before_text:N"),
        after_text.encode(x=alt.X("after:Q", **x), text="after_text:N"),
    )


def _reliability(alt: Any, data: ReportData) -> Any:  # noqa: ARG001
    """Accuracy and confidence per bin, and below them how the rows spread."""
    axis = {"values": _SPLIT_TICKS, "format": ".0%"}
    whole, unit = alt.Scale(domain=[-0.2, 1], nice=False), alt.Scale(domain=[0, 1], nice=False)
    x = alt.X("x0:Q", title="confidence", scale=unit, axis=alt.Axis(grid=False, **axis))

    def y(field: str) -> Any:
        return alt.Y(f"{field}:Q", title="accuracy", scale=whole, axis=alt.Axis(**axis), stack=None)

    def pale(full: float) -> Any:
        return alt.condition("datum.n < 10", alt.value(0.45 * full), alt.value(full))

    base = _rows(alt).encode(x=x, x2="x1:Q", tooltip=alt.Tooltip("tip:N"))
    edge = {"stroke": "var(--paper)", "strokeWidth": 1}
    side = alt.condition("datum.conf > datum.acc", alt.value("var(--over)"), alt.value("var(--under)"))
    kept = base.mark_bar(color="var(--bar)", **edge).encode(y=y("both"), y2=alt.datum(0), opacity=pale(1))
    gap = base.mark_bar(**edge).encode(y=y("acc"), y2="conf:Q", color=side, opacity=pale(0.9))
    spread = base.mark_bar(color="var(--few)", **edge).encode(y=y("share"), y2=alt.datum(-0.2))
    ends = alt.Data(values=[{"x0": 0, "acc": 0}, {"x0": 1, "acc": 1}])
    ideal = alt.Chart(ends).mark_line(stroke="var(--ink)", strokeDash=[4, 4], strokeWidth=1, opacity=0.6)
    zero = alt.Chart(ends).mark_rule(stroke="var(--line-strong)")
    layers = (kept, gap, spread, zero.encode(y=alt.datum(0)), ideal.encode(x=x, y=y("acc")))
    return alt.layer(*layers).properties(width=400, height=400)


def _methods(alt: Any, data: ReportData) -> Any:  # noqa: ARG001
    """Calibration errors of all methods with their floors."""
    gap = alt.Scale(paddingInner=0.22)
    y = alt.Y("metric:N", sort=None, title=None, axis=_metric_axis(alt), scale=gap)
    offset = alt.YOffset("method:N", sort=None, scale=alt.Scale(paddingInner=0.18))
    base = _rows(alt).encode(y=y, yOffset=offset, tooltip=alt.Tooltip("tip:N"))
    x = _error_axis(alt)
    colour = alt.condition("datum.recommended", alt.value("var(--accent)"), alt.value("var(--bar)"))
    bars = base.mark_bar(cornerRadiusEnd=2).encode(x=alt.X("value:Q", stack=None, **x), color=colour)
    edge = base.mark_tick(thickness=4, color="var(--paper)").encode(x=alt.X("floor:Q", **x))
    floor = base.mark_tick(thickness=2, color="var(--ink)").encode(x=alt.X("floor:Q", **x))
    text = base.mark_text(align="left", dx=7, fontSize=11.5).encode(x=alt.X("end:Q", **x), text="label:N")
    return _sized(alt, bars, edge, floor, text)


def _settling(alt: Any, data: ReportData) -> Any:  # noqa: ARG001
    """Classes settled over further rows."""
    ticks = [digit * 10**power for power in range(10) for digit in (1, 2, 5)]  # Vega shows those in range
    x = alt.X(
        "rows:Q",
        title="further rows drawn like these (log scale)",
        scale=alt.Scale(type="log", nice=False),
        axis=alt.Axis(values=ticks, format="~s", grid=False, labelOverlap="greedy"),
    )
    y = alt.Y("settled:Q", title="classes settled", axis=alt.Axis(tickCount=5, format="~d"), stack=None)
    base = _rows(alt).encode(x=x, y=y)
    area = base.mark_area(interpolate="step-after", color="var(--accent)", opacity=0.12)
    line = base.mark_line(interpolate="step-after", color="var(--accent)", strokeWidth=2.2)
    return alt.layer(area, line).properties(width=600, height=240)


_CHARTS: dict[str, Callable[[Any, ReportData], Any]] = {
    "effect": _effect,
    "reliability": _reliability,
    "gaps": gaps,
    "map": scatter,
    "methods": _methods,
    "temperatures": temperatures,
    "training": training,
    "settling": _settling,
}
