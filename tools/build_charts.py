"""Compile the charts of the report, so that writing a report does not need Altair.

Run ``python tools/build_charts.py`` after changing a chart. It writes the Vega specifications to
``src/hetcal/report/static/charts.json``.

The charts contain no data. The page fills in the data set ``rows`` (and ``labels`` if a chart has one) and
sets these signals: ``picked`` is the index of the selected class, or -1; ``chart_width`` is the width in
pixels; ``axis_end`` is the end of an error axis. The functions below describe the signals of single charts.
Colours are CSS variables, so one specification works for the light theme, the dark theme and print.

Every mark and colour has one meaning on the whole page, which the legend of the page defines. A filled dot is
the value before calibration and a ring the value after it, a tick is a noise floor, and a dashed line is
perfect calibration. Colours stand for verdicts only; everything else is grey.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert

OUTPUT = Path(__file__).parent.parent / "src" / "hetcal" / "report" / "static" / "charts.json"
KINDS = ("over", "under", "fine", "few")  # verdict keys, as in hetcal.report.page

_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
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
_NARROW = "chart_width < 480"
_NAME = "slice(datum.label, indexof(datum.label, ':') + 1)"  # keys are "rank:name" because names may repeat
_BREAK = "break-paths-show-domains"  # a row without a value separates two lines of a path
_DASHED = {"stroke": "var(--ink)", "opacity": 0.6, "strokeDash": [4, 4], "strokeWidth": 1}
_RING = {"filled": True, "fill": "var(--paper)", "stroke": "var(--ink)", "strokeWidth": 2, "opacity": 1}
_HALO = {"stroke": "var(--paper)", "strokeWidth": 5, "strokeJoin": "round"}
_PERCENT = ".2~%"  # as many of two decimals as needed, so that neighbouring ticks have different labels
_POINTS = f"datum.value ? format(datum.value, '+{_PERCENT}') : '0'"


def main() -> None:
    """Write the specifications, with the versions that compiled them."""
    versions = {"altair": alt.__version__, "vl_convert": vl_convert.__version__}
    text = json.dumps({"compiled_by": versions, "charts": compile_charts()}, separators=(",", ":"))
    OUTPUT.write_text(text + "\n", encoding="utf-8")


def compile_charts() -> dict[str, dict[str, Any]]:
    """Return the Vega specification of each chart."""
    specs = {name: vl_convert.vegalite_to_vega(_styled(chart())) for name, chart in CHARTS.items()}
    _name_points(specs["map"])
    return specs


def effect() -> Any:
    """Each calibration error before and after calibration, with its noise floor."""
    base = _rows().encode(y=alt.Y("metric:N", sort=None, title=None, axis=_metric_axis()))
    x = _error_axis()
    line = base.mark_rule(strokeWidth=2, stroke="var(--line-strong)")
    floor = base.mark_tick(thickness=2, size=30, color="var(--ink)", opacity=0.75)
    before = base.mark_circle(size=110, opacity=1, color="var(--ink)")
    after = base.mark_point(size=170, **_RING)
    before_text = base.mark_text(dy=-16, fill="var(--muted)")
    after_text = base.mark_text(dy=19, fontWeight="bold")
    return _with_error_axis(
        line.encode(x=alt.X("before:Q", **x), x2="after:Q"),
        floor.encode(x=alt.X("floor:Q", **x)),
        after.encode(x=alt.X("after:Q", **x)),
        before.encode(x=alt.X("before:Q", **x)),
        before_text.encode(x=alt.X("before:Q", **x), text="before_text:N"),
        after_text.encode(x=alt.X("after:Q", **x), text="after_text:N"),
    )


def reliability() -> Any:
    """Accuracy and confidence per bin, with the distribution of rows below."""
    axis = {"values": [0, 0.2, 0.4, 0.6, 0.8, 1], "format": _PERCENT}
    x_scale, y_scale = alt.Scale(domain=[0, 1], nice=False), alt.Scale(domain=[-0.2, 1], nice=False)
    x = alt.X("x0:Q", title="confidence", scale=x_scale, axis=alt.Axis(grid=False, **axis))

    def y(field: str) -> Any:
        return alt.Y(f"{field}:Q", title="accuracy", scale=y_scale, axis=alt.Axis(**axis), stack=None)

    def pale(opacity: float) -> Any:
        return alt.condition("datum.n < 10", alt.value(0.45 * opacity), alt.value(opacity))

    base = _rows().encode(x=x, x2="x1:Q", tooltip=alt.Tooltip("tip:N"))
    edge = {"stroke": "var(--paper)", "strokeWidth": 1}
    side = alt.condition("datum.conf > datum.acc", alt.value("var(--over)"), alt.value("var(--under)"))
    ends = alt.Data(values=[{"x0": 0, "acc": 0}, {"x0": 1, "acc": 1}])
    ideal = alt.Chart(ends).mark_line(**_DASHED)
    zero = alt.Chart(ends).mark_rule(stroke="var(--line-strong)")
    return alt.layer(
        base.mark_bar(color="var(--bar)", **edge).encode(y=y("both"), y2=alt.datum(0), opacity=pale(1)),
        base.mark_bar(**edge).encode(y=y("acc"), y2="conf:Q", color=side, opacity=pale(0.9)),
        base.mark_bar(color="var(--bar)", **edge).encode(y=y("share"), y2=alt.datum(-0.2)),
        zero.encode(y=alt.datum(0)),
        ideal.encode(x=x, y=y("acc")),
    ).properties(width=400, height=400)


def gaps() -> Any:
    """Signed gap of each class with its interval and noise range.

    Parameters: ``gap_low`` and ``gap_high`` bound the axis. ``many`` shows the name of the selected class
    instead of the gaps after calibration.
    """
    names = alt.Axis(
        labelExpr=_NAME,
        labelLimit=alt.ExprRef(f"{_NARROW} ? 96 : 190"),
        labelOverlap="parity",
        labelColor="var(--ink)",
        grid=False,
    )
    y = alt.Y("key:N", sort=None, title=None, axis=names, scale=alt.Scale(paddingInner=0.12))
    ticks = alt.ExprRef(f"{_NARROW} ? 4 : 6")
    axis = alt.Axis(labelExpr=_POINTS, tickCount=ticks, orient="top")  # a long chart ends below the window
    title = "\u00a0"  # reserves the space of `_gap_directions`
    scale = alt.Scale(domain=[alt.ExprRef("gap_low"), alt.ExprRef("gap_high")], nice=False, zero=False)

    def x(field: str) -> Any:
        return alt.X(f"{field}:Q", title=title, scale=scale, axis=axis, stack=None)

    base = _rows().encode(y=y, tooltip=alt.Tooltip("tip:N"))
    interval = base.mark_rule(clip=True, strokeWidth=alt.expr("max(0.7, min(2.4, 0.3 * bandwidth('y')))"))
    dot = base.mark_circle(clip=True, size=alt.expr("max(7, min(64, 0.35 * pow(bandwidth('y'), 2)))"))
    ring_area = alt.expr("max(14, min(100, 0.6 * pow(bandwidth('y'), 2)))")
    ring = base.mark_point(clip=True, size=ring_area, **_RING | {"strokeWidth": 1.6})
    click_area = base.mark_bar(cursor="pointer", color="var(--ink)")
    shade = alt.condition("datum.k === picked", alt.value(0.09), alt.value(0))
    # The selected class gets a full-sized dot and its name, on the side of its interval nearer to zero.
    picked = base.transform_filter("many && datum.k === picked")
    picked_dot = picked.mark_circle(size=64, clip=True)
    picked_name = picked.mark_text(
        align=alt.expr("datum.gap > 0 ? 'right' : 'left'"),
        dx=alt.expr("datum.gap > 0 ? -8 : 8"),
        fontWeight="bold",
        limit=240,
    )
    return _linked(
        base.mark_bar(color="var(--band)", clip=True).encode(x=x("noise_low"), x2="noise_high:Q"),
        _single().mark_rule(**_DASHED).encode(x=alt.XDatum(0, scale=scale)),
        interval.encode(x=x("low"), x2="high:Q", color=_colour(), opacity=_faded(0.75, 0.15)),
        ring.transform_filter("!many").encode(x=x("gap_after"), opacity=_faded(1, 0.2)),
        dot.encode(x=x("gap"), color=_colour(), opacity=_faded(1, 0.2)),
        picked_dot.encode(x=x("gap"), color=_colour(), opacity=alt.value(1)),
        picked_name.encode(x=x("edge"), text="label:N"),
        click_area.encode(x=alt.value(0), x2=alt.value(alt.expr("width")), opacity=shade),
        *_gap_directions(),
        gap_low=-1,
        gap_high=1,
        many=False,
    )


def _gap_directions() -> list[Any]:
    """Meaning of both directions, above the ends of the axis."""
    left = _single().mark_text(align="left", fill="var(--under-text)", text="← under-confident")
    right = _single().mark_text(align="right", fill="var(--over-text)", text="over-confident →")
    above = alt.value(-36)
    return [
        left.encode(x=alt.value(0), y=above),
        right.encode(x=alt.value(alt.expr("width")), y=above),
    ]


def class_map() -> Any:
    """Confidence against accuracy, one point per class.

    Parameters: ``map_low`` is the lower end of both axes, ``most_rows`` the rows of the largest class and
    ``largest_area`` the area of its point.
    """
    scale = alt.Scale(domain=[alt.ExprRef("map_low"), 1.02], nice=False, zero=False)
    axis = alt.Axis(format=_PERCENT, tickCount=5)
    x = alt.X("conf:Q", title="mean confidence", scale=scale, axis=axis)
    y = alt.Y("acc:Q", title="accuracy", scale=scale, axis=axis)
    ends = alt.Chart(alt.Data(values=[{"end": 0}, {"end": 1}]))
    end = "datum.end ? 1.02 : map_low"
    diagonal = ends.transform_calculate(conf=end, acc=end).mark_line(**_DASHED).encode(x=x, y=y)
    areas = alt.Scale(domain=[0, alt.ExprRef("most_rows")], range=[14, alt.ExprRef("largest_area")])
    selected = "datum.k === picked"
    points = _rows().mark_circle(cursor="pointer").encode(
        x=x,
        y=y,
        size=alt.Size("n:Q", legend=None, scale=areas),
        color=_colour(),
        stroke=alt.condition(selected, alt.value("var(--ink)"), alt.value("var(--paper)")),
        strokeWidth=alt.condition(selected, alt.value(2.5), alt.value(0.8)),
        opacity=_faded(0.8, 0.12),
        tooltip=alt.Tooltip("tip:N"),
    )  # fmt: skip
    texts = [text.encode(x=x, y=y, text="label:N") for text in _map_texts()]
    signals = {"map_low": 0, "most_rows": 1, "largest_area": 420}
    return _linked(diagonal, points.properties(name="points"), *texts, **signals)


def _map_texts() -> list[Any]:
    """Labels in two corners of the map, and the name of the selected class beside its point.

    Each is drawn twice, first with a halo, because there may be points behind it.
    """
    corners = {
        "under": ("under-confident", "left", 0.02, 0.97),
        "over": ("over-confident", "right", 0.98, 0.03),
    }
    texts = []
    for kind, (label, align, across, up) in corners.items():
        corner = alt.Chart(alt.Data(values=[{"label": label}])).transform_calculate(
            conf=f"map_low + {across} * (1.02 - map_low)", acc=f"map_low + {up} * (1.02 - map_low)"
        )
        style = {"align": align, "fontSize": 13, "fontWeight": "bold", "fill": f"var(--{kind}-text)"}
        label_mark = corner.mark_text(**style).properties(name=f"corner_{kind}")
        texts += [corner.mark_text(**style, **_HALO), label_mark]
    side = {"align": "datum.conf > 0.8 ? 'right' : 'left'", "dx": "datum.conf > 0.8 ? -14 : 14"}
    style = {"fontWeight": "bold"} | {key: alt.expr(value) for key, value in side.items()}
    picked = _rows().transform_filter("datum.k === picked")
    return [*texts, picked.mark_text(**style, **_HALO), picked.mark_text(**style)]


def _name_points(spec: dict[str, Any]) -> None:
    """Add names beside some points of the compiled map.

    Vega's label transform places them so that they overlap neither each other nor the points nor the
    labels in the corners. Vega-Lite does not expose that transform.
    """
    obstacles = [mark["name"] for mark in spec["marks"] if mark["name"].startswith(("points", "corner"))]
    position = {key: {"scale": key, "field": field} for key, field in (("x", "conf"), ("y", "acc"))}
    anchors = {"type": "symbol", "name": "named", "interactive": False, "from": {"data": "labels"}}
    anchors["encode"] = {
        "update": position | {"size": {"scale": "size", "field": "n"}, "opacity": {"value": 0}}
    }
    style = {"fontSize": 11.5, "fill": "var(--ink)", "font": _FONT}
    text = {"text": {"field": "datum.label"}} | {key: {"value": value} for key, value in style.items()}
    label = {
        "type": "label",
        "size": {"signal": "[width, height]"},
        "anchor": ["right", "left", "top", "bottom"],
        "offset": [4],
        "padding": 6,
        "avoidMarks": obstacles,
    }
    names = {"type": "text", "interactive": False, "from": {"data": "named"}, "encode": {"update": text}}
    spec["data"].append({"name": "labels"})
    spec["marks"] += [anchors, names | {"transform": [label]}]


def methods() -> Any:
    """Calibration errors of all methods with their noise floors."""
    spacing = alt.Scale(paddingInner=0.22)
    y = alt.Y("metric:N", sort=None, title=None, axis=_metric_axis(), scale=spacing)
    offset = alt.YOffset("method:N", sort=None, scale=alt.Scale(paddingInner=0.18))
    base = _rows().encode(y=y, yOffset=offset, tooltip=alt.Tooltip("tip:N"))
    x = _error_axis()
    colour = alt.condition("datum.recommended", alt.value("var(--muted)"), alt.value("var(--bar)"))
    bars = base.mark_bar(cornerRadiusEnd=2).encode(x=alt.X("value:Q", stack=None, **x), color=colour)
    edge = base.mark_tick(thickness=4, color="var(--paper)").encode(x=alt.X("floor:Q", **x))
    floor = base.mark_tick(thickness=2, color="var(--ink)").encode(x=alt.X("floor:Q", **x))
    text = base.mark_text(align="left", dx=7, fontSize=11.5).encode(x=alt.X("end:Q", **x), text="label:N")
    return _with_error_axis(bars, edge, floor, text)


def temperatures() -> Any:
    """Temperature of each class against Γ, one line per class.

    Parameters: ``reach`` is the largest finite Γ, ``t_low`` and ``t_high`` bound the temperature axis,
    ``chosen_gamma`` is the cross-validated Γ (0 hides its line), ``labelled`` reserves space for names.
    """
    lines = _temperature_lines().encode(detail="k:N", tooltip=alt.Tooltip("tip:N"))
    all_lines = lines.mark_line(clip=True, strokeWidth=1.8, invalid=_BREAK)
    return _temperature_chart(lines, all_lines.encode(opacity=_faded(0.85, 0.1)))


def temperatures_many() -> Any:
    """Temperatures of many classes. All lines with the same verdict form one path, which draws much faster.

    Additional parameter: ``opacity``, lower for more classes because their lines overlap.
    """
    lines = _temperature_lines()
    opacity = alt.condition(
        "picked < 0", alt.value(alt.ExprRef("opacity")), alt.value(alt.ExprRef("opacity / 4"))
    )
    all_lines = lines.mark_line(clip=True, strokeWidth=0.8, invalid=_BREAK)
    return _temperature_chart(lines, all_lines.encode(opacity=opacity), opacity=0.5)


def _temperature_axes() -> tuple[Any, Any]:
    end = "1.1 * reach * (1 + (labelled ? 100 : 14) / max(150, chart_width - 190))"
    hidden = f"{_NARROW} && datum.value > 0.9 * reach ? ''"
    label = f"datum.value > 1.05 * reach ? '∞' : {hidden} : format(datum.value, '.2~r')"
    ticks = alt.ExprRef("[0, reach / 4, reach / 2, 3 * reach / 4, reach, 1.1 * reach]")
    x = alt.X(
        "x:Q",
        title="Γ: how far the classes may differ",
        scale=alt.Scale(domain=[0, alt.ExprRef(end)], nice=False),
        axis=alt.Axis(values=ticks, labelExpr=label, grid=False, labelOverlap=False),
    )
    domain = [alt.ExprRef("t_low"), alt.ExprRef("t_high")]
    scale = alt.Scale(type="log", domain=domain, clamp=True, nice=False)
    axis = alt.Axis(tickCount=5, format="~g")
    return x, alt.Y("t:Q", title="temperature (log scale)", scale=scale, axis=axis)


def _temperature_lines() -> Any:
    x, y = _temperature_axes()
    return _rows().encode(x=x, y=y, color=_colour(), order="i:Q")


def _temperature_chart(lines: Any, all_lines: Any, **signals: float) -> Any:
    x, y = _temperature_axes()
    picked = lines.transform_filter("datum.k === picked").mark_line(clip=True, strokeWidth=3, invalid=_BREAK)
    text = alt.Chart(alt.NamedData(name="labels")).mark_text(align="left", dx=7, fontSize=11, limit=96)
    chosen = _single().transform_calculate(x="chosen_gamma").transform_filter("chosen_gamma > 0")
    return _linked(
        all_lines,
        picked.encode(color=alt.value("var(--ink)")),
        text.encode(x=x, y=y, text="text:N", opacity=_faded(1, 0.25)),
        _single().mark_rule(stroke="var(--line-strong)").encode(y=alt.datum(1)),
        chosen.mark_rule(stroke="var(--ink)", strokeWidth=1, opacity=0.5).encode(x=x),
        **{"reach": 1, "t_low": 0.5, "t_high": 2, "chosen_gamma": 0, "labelled": True, **signals},
    )


def training() -> Any:
    """Gap of each class against its number of training rows."""
    axis = alt.Axis(tickCount=5, format="~s", grid=False)
    scale = alt.Scale(type="log", nice=False, padding=12)
    x = alt.X("train:Q", title="training rows of the class (log scale)", scale=scale, axis=axis)
    y = {"title": "confidence − accuracy", "axis": alt.Axis(labelExpr=_POINTS, tickCount=5)}
    base = _rows().encode(x=x, color=_colour()).transform_filter("datum.train > 0")
    interval = base.mark_rule(strokeWidth=1.2).encode(opacity=_faded(0.35, 0.05))
    points = base.mark_circle(size=60, cursor="pointer").encode(opacity=_faded(0.9, 0.12))
    return _linked(
        interval.encode(y=alt.Y("low:Q", **y), y2="high:Q"),
        points.encode(y=alt.Y("gap:Q", **y), tooltip=alt.Tooltip("tip:N")),
        _single().mark_rule(**_DASHED).encode(y=alt.datum(0)),
    )


def settling() -> Any:
    """Number of classes with a verdict against the number of additional rows."""
    ticks = [digit * 10**power for power in range(10) for digit in (1, 2, 5)]  # Vega shows those in range
    x = alt.X(
        "rows:Q",
        title="additional rows (log scale)",
        scale=alt.Scale(type="log", nice=False),
        axis=alt.Axis(values=ticks, format="~s", grid=False, labelOverlap="greedy"),
    )
    y = alt.Y(
        "settled:Q",
        title="classes decided",
        axis=alt.Axis(tickCount=5, tickMinStep=1, format="~d"),
        stack=None,
    )
    base = _rows().encode(x=x, y=y)
    area = base.mark_area(interpolate="step-after", color="var(--muted)", opacity=0.15)
    line = base.mark_line(interpolate="step-after", color="var(--muted)", strokeWidth=2.2)
    return alt.layer(area, line).properties(width=600, height=240)


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


def _rows() -> Any:
    return alt.Chart(alt.NamedData(name="rows"))


def _single() -> Any:
    """Return a chart of one mark, without data."""
    return alt.Chart(alt.Data(values=[{}]))


def _linked(*layers: Any, **signals: Any) -> Any:
    """Return a layered chart that reacts to the selected class."""
    values = {"picked": -1, "chart_width": 600, **signals}
    parameters = [alt.param(name=name, value=value) for name, value in values.items()]
    return alt.layer(*layers).add_params(*parameters).properties(width=600, height=360)


def _with_error_axis(*layers: Any) -> Any:
    parameters = [alt.param(name="chart_width", value=600), alt.param(name="axis_end", value=1)]
    return alt.layer(*layers).add_params(*parameters).properties(width=600, height=300)


def _error_axis() -> dict[str, Any]:
    # Space for the labels of long bars may extend the axis beyond 100%, which no error can reach.
    percent = f"datum.value > 1 ? '' : format(datum.value, '{_PERCENT}')"
    return {
        "title": "calibration error",
        "axis": alt.Axis(labelExpr=percent, tickCount=alt.ExprRef(f"{_NARROW} ? 4 : 5")),
        "scale": alt.Scale(domain=[0, alt.ExprRef("axis_end")], nice=False),
    }


def _metric_axis() -> Any:
    limit = alt.ExprRef(f"{_NARROW} ? 72 : 130")
    return alt.Axis(labelLimit=limit, labelFontSize=13, labelPadding=12, labelColor="var(--ink)", grid=False)


def _colour() -> Any:
    scale = alt.Scale(domain=list(KINDS), range=[f"var(--{kind})" for kind in KINDS])
    return alt.Color("kind:N", scale=scale, legend=None)


def _faded(opacity: float, faint: float) -> Any:
    """Set the opacity, lower for classes that the search or the selection excludes."""
    shown = "(picked < 0 || datum.k === picked) && datum.match !== false"
    return alt.condition(shown, alt.value(opacity), alt.value(faint))


CHARTS: dict[str, Callable[[], Any]] = {
    "effect": effect,
    "reliability": reliability,
    "gaps": gaps,
    "map": class_map,
    "methods": methods,
    "temperatures": temperatures,
    "temperatures_many": temperatures_many,
    "training": training,
    "settling": settling,
}

if __name__ == "__main__":
    main()
