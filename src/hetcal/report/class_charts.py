"""The charts in which every class is a mark that can be clicked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hetcal.diagnosis import CONSISTENT, OVER, TOO_FEW, UNDER
from hetcal.report.data import ReportData

__all__ = ["KINDS", "MANY", "gaps", "name_points", "scatter", "temperature_range", "temperatures", "training"]

KINDS = {OVER: "over", UNDER: "under", CONSISTENT: "fine", TOO_FEW: "few"}
MANY = 60  # classes above which marks get small and the gaps after calibration are left out
_CUT = 200  # classes above which a few long intervals would squeeze all others
_NAME = "slice(datum.label, indexof(datum.label, ':') + 1)"  # a key is "rank:name", so that names may repeat
_BREAK = "break-paths-show-domains"  # a line ends at a row without a number and begins anew after it
_LINE = {"stroke": "var(--ink)", "opacity": 0.6}
_DASHED = _LINE | {"strokeDash": [4, 4], "strokeWidth": 1}
_POINTS = "datum.value ? format(datum.value, '+.0%') : '0'"


def gaps(alt: Any, data: ReportData) -> Any:
    """Signed gap of every class with interval and noise range, in order."""
    names = alt.Axis(
        labelExpr=_NAME,
        labelLimit=alt.ExprRef("room < 480 ? 96 : 190"),
        labelOverlap="parity",
        labelColor="var(--ink)",
        grid=False,
    )
    y = alt.Y("key:N", sort=None, title=None, axis=names, scale=alt.Scale(paddingInner=0.12))
    axis = alt.Axis(labelExpr=_POINTS, tickCount=alt.ExprRef("room < 480 ? 4 : 6"))
    scale = alt.Scale(domain=_gap_domain(data), nice=False, zero=False)

    def x(field: str) -> Any:
        return alt.X(f"{field}:Q", title="confidence − accuracy", scale=scale, axis=axis, stack=None)

    base = _rows(alt).encode(y=y, tooltip=alt.Tooltip("tip:N"))
    span = base.mark_rule(clip=True, strokeWidth=alt.expr("max(0.7, min(2.4, 0.3 * bandwidth('y')))"))
    dot = base.mark_circle(clip=True, size=alt.expr("max(7, min(64, 0.35 * pow(bandwidth('y'), 2)))"))
    after = base.mark_tick(
        clip=True, thickness=2, size=alt.expr("min(16, bandwidth('y'))"), color="var(--ink)"
    )
    hit = base.mark_bar(cursor="pointer", color="var(--ink)")
    shade = alt.condition("datum.k === picked", alt.value(0.09), alt.value(0))
    layers = [
        base.mark_bar(color="var(--band)", clip=True).encode(x=x("noise_low"), x2="noise_high:Q"),
        _single(alt).mark_rule(**_LINE).encode(x=alt.XDatum(0, scale=scale)),
        span.encode(x=x("low"), x2="high:Q", color=_colour(alt), opacity=_faded(alt, 0.75, 0.15)),
        dot.encode(x=x("gap"), color=_colour(alt), opacity=_faded(alt, 1, 0.2)),
        after.encode(x=x("gap_after"), opacity=_faded(alt, 0.9, 0.2)),
        hit.encode(x=alt.value(0), x2=alt.value(alt.expr("width")), opacity=shade),
    ]
    if len(data.names) > MANY:
        layers[4] = _name_picked(alt, base, x)
    return _linked(alt, *layers)


def _name_picked(alt: Any, base: Any, x: Callable[[str], Any]) -> Any:
    """Write the name of the picked class beside its interval, towards zero, and draw its dot in full size."""
    picked = base.transform_filter("datum.k === picked")
    dot = picked.mark_circle(size=64, clip=True).encode(x=x("gap"), color=_colour(alt), opacity=alt.value(1))
    right = "datum.gap > 0 ? 'right' : 'left'"
    text = picked.mark_text(
        align=alt.expr(right), dx=alt.expr("datum.gap > 0 ? -8 : 8"), fontWeight="bold", limit=240
    )
    return alt.layer(dot, text.encode(x=x("edge"), text="label:N"))


def scatter(alt: Any, data: ReportData) -> Any:
    """Confidence against accuracy, a point per class."""
    seen = [c for c in data.diagnosis.classes if c.n > 0]
    low = min(min(c.confidence, c.accuracy) for c in seen)
    low = max(-0.02, float(np.floor(low * 20) / 20) - 0.025)
    scale = alt.Scale(domain=[low, 1.02], nice=False, zero=False)
    axis = alt.Axis(format=".0%", tickCount=5)
    x = alt.X("conf:Q", title="mean confidence", scale=scale, axis=axis)
    y = alt.Y("acc:Q", title="accuracy", scale=scale, axis=axis)
    ends = [{"conf": low, "acc": low}, {"conf": 1.02, "acc": 1.02}]
    diagonal = alt.Chart(alt.Data(values=ends)).mark_line(**_DASHED).encode(x=x, y=y)
    areas = alt.Scale(domain=[0, max(c.n for c in seen)], range=[14, 140 if len(seen) > MANY else 420])
    chosen = "datum.k === picked"
    dots = _rows(alt).mark_circle(cursor="pointer").encode(
        x=x,
        y=y,
        size=alt.Size("n:Q", legend=None, scale=areas),
        color=_colour(alt),
        stroke=alt.condition(chosen, alt.value("var(--ink)"), alt.value("var(--paper)")),
        strokeWidth=alt.condition(chosen, alt.value(2.5), alt.value(0.8)),
        opacity=_faded(alt, 0.8, 0.12),
        tooltip=alt.Tooltip("tip:N"),
    )  # fmt: skip
    texts = [text.encode(x=x, y=y, text="label:N") for text in _map_texts(alt, low)]
    return _linked(alt, diagonal, dots.properties(name="points"), *texts)


def _map_texts(alt: Any, low: float) -> list[Any]:
    """Name of the side in two corners of the map, and of the picked class beside its point."""
    sides = {UNDER: ("left", 0.02, 0.97), OVER: ("right", 0.98, 0.03)}
    texts = []
    for kind, (align, across, up) in sides.items():
        place = {"conf": low + across * (1.02 - low), "acc": low + up * (1.02 - low), "label": kind}
        look = {"align": align, "fontSize": 13, "fontWeight": "bold", "fill": f"var(--{KINDS[kind]}-text)"}
        texts.append(alt.Chart(alt.Data(values=[place])).mark_text(**look))
    away = {"align": "datum.conf > 0.8 ? 'right' : 'left'", "dx": "datum.conf > 0.8 ? -14 : 14"}
    picked = _rows(alt).transform_filter("datum.k === picked")
    look = {key: alt.expr(value) for key, value in away.items()}
    return [*texts, picked.mark_text(fontWeight="bold", **look)]


def name_points(spec: dict[str, Any], font: str) -> None:
    """Write names beside some points of a compiled map, where there is room.

    Vega places labels so that they overlap neither each other nor the points; Vega-Lite, and so Altair, has
    no word for it.
    """
    points = next(mark["name"] for mark in spec["marks"] if mark["name"].startswith("points"))
    place = {key: {"scale": key, "field": field} for key, field in (("x", "conf"), ("y", "acc"))}
    anchors = {"type": "symbol", "name": "named", "interactive": False, "from": {"data": "labels"}}
    anchors["encode"] = {"update": place | {"size": {"scale": "size", "field": "n"}, "opacity": {"value": 0}}}
    look = {"fontSize": 11.5, "fill": "var(--ink)", "font": font}
    text = {"text": {"field": "datum.label"}} | {key: {"value": value} for key, value in look.items()}
    label = {
        "type": "label",
        "size": {"signal": "[width, height]"},
        "anchor": ["right", "left", "top", "bottom"],
        "offset": [4],
        "padding": 6,
        "avoidMarks": [points],
    }
    names = {"type": "text", "interactive": False, "from": {"data": "named"}, "encode": {"update": text}}
    spec["data"].append({"name": "labels"})
    spec["marks"] += [anchors, names | {"transform": [label]}]


def temperature_range(data: ReportData) -> list[float]:
    """Range of the axis of temperatures: (nearly) all classes with a finite optimum, and 1."""
    path = data.path
    own = (path.n_fit > 0) & ~path.at_bound
    t = 1 / (path.alpha[:, own] if own.any() else path.alpha0)
    tail = 0.002 if len(data.names) > MANY else 0.0
    low, high = (float(np.quantile(t, q)) for q in (tail, 1 - tail))
    return [round(min(0.95, 0.94 * low), 4), round(max(1.05, 1.06 * high), 4)]


def temperatures(alt: Any, data: ReportData) -> Any:
    """Temperature of every class over Γ."""
    reach, many = float(data.path.gamma[-2]) or 1.0, len(data.names) > MANY
    end = f"{1.1 * reach} * (1 + (labelled ? 100 : 14) / max(150, room - 190))"
    ticks = [*np.linspace(0, reach, 5).tolist(), 1.1 * reach]
    crowded = f"room < 480 && datum.value > {0.9 * reach} ? ''"
    named = f"datum.value > {1.05 * reach} ? '∞' : {crowded} : format(datum.value, '.2~f')"
    x = alt.X(
        "x:Q",
        title="Γ: room for each class to differ",
        scale=alt.Scale(domain=[0, alt.ExprRef(end)], nice=False),
        axis=alt.Axis(values=ticks, labelExpr=named, grid=False, labelOverlap=False),
    )
    log = alt.Scale(type="log", domain=temperature_range(data), clamp=True, nice=False)
    y = alt.Y("t:Q", title="temperature (log scale)", scale=log, axis=alt.Axis(tickCount=5, format="~g"))
    base = _rows(alt).encode(x=x, y=y, color=_colour(alt), order="i:Q")
    if not many:  # else the classes of a kind are one path with gaps, which draws a hundred times faster
        base = base.encode(detail="k:N", tooltip=alt.Tooltip("tip:N"))
    thin = base.mark_line(clip=True, strokeWidth=0.8 if many else 1.8, invalid=_BREAK)
    bold = base.mark_line(clip=True, strokeWidth=3, invalid=_BREAK).transform_filter("datum.k === picked")
    text = alt.Chart(alt.NamedData(name="labels")).mark_text(align="left", dx=7, fontSize=11, limit=96)
    layers = [
        thin.encode(opacity=_faded(alt, 0.85, 0.1) if not many else _all_faded(alt, len(data.names))),
        bold.encode(color=alt.value("var(--ink)")),
        text.encode(x=x, y=y, text="text:N", opacity=_faded(alt, 1, 0.25)),
        _single(alt).mark_rule(**_DASHED).encode(y=alt.datum(1)),
    ]
    if 0 < data.path.chosen < np.inf:
        rule = _single(alt).mark_rule(stroke="var(--ink)", strokeWidth=1, opacity=0.5)
        layers.append(rule.encode(x=alt.datum(min(data.path.chosen, reach))))
    return _linked(alt, *layers).add_params(alt.param(name="labelled", value=not many))


def training(alt: Any, data: ReportData) -> Any:  # noqa: ARG001
    """Gap of every class over the rows it was trained on."""
    axis = alt.Axis(tickCount=5, format="~s", grid=False)
    scale = alt.Scale(type="log", nice=False, padding=12)
    x = alt.X("train:Q", title="training rows of the class (log scale)", scale=scale, axis=axis)
    up = {"title": "confidence − accuracy", "axis": alt.Axis(labelExpr=_POINTS, tickCount=5)}
    base = _rows(alt).encode(x=x, color=_colour(alt)).transform_filter("datum.train > 0")
    span = base.mark_rule(strokeWidth=1.2).encode(opacity=_faded(alt, 0.35, 0.05))
    dots = base.mark_circle(size=60, cursor="pointer").encode(opacity=_faded(alt, 0.9, 0.12))
    return _linked(
        alt,
        span.encode(y=alt.Y("low:Q", **up), y2="high:Q"),
        dots.encode(y=alt.Y("gap:Q", **up), tooltip=alt.Tooltip("tip:N")),
        _single(alt).mark_rule(**_LINE).encode(y=alt.datum(0)),
    )


def _rows(alt: Any) -> Any:
    return alt.Chart(alt.NamedData(name="rows"))


def _single(alt: Any) -> Any:
    """Chart of one mark that has no row of its own."""
    return alt.Chart(alt.Data(values=[{}]))


def _linked(alt: Any, *layers: Any) -> Any:
    parameters = [alt.param(name="picked", value=-1), alt.param(name="room", value=600)]
    return alt.layer(*layers).add_params(*parameters).properties(width=600, height=360)


def _colour(alt: Any) -> Any:
    scale = alt.Scale(domain=list(KINDS.values()), range=[f"var(--{k})" for k in KINDS.values()])
    return alt.Color("kind:N", scale=scale, legend=None)


def _faded(alt: Any, plain: float, faint: float) -> Any:
    """Faint for classes that are not searched for, or not picked while another is."""
    shown = "(picked < 0 || datum.k === picked) && datum.match !== false"
    return alt.condition(shown, alt.value(plain), alt.value(faint))


def _all_faded(alt: Any, n_classes: int) -> Any:
    """Opacity of lines that lie on each other, fainter the more there are, and more so when one is picked."""
    plain = max(0.1, min(0.6, 60 / n_classes))
    return alt.condition("picked < 0", alt.value(plain), alt.value(plain / 4))


def _gap_domain(data: ReportData) -> list[float]:
    """Range that holds all gaps and intervals; of hundreds of classes the longest intervals are cut off."""
    seen = [c for c in data.diagnosis.classes if c.n > 0]
    tail = 0.03 if len(seen) > _CUT else 0.0
    gaps = [c.signed_gap for c in seen]
    if len(seen) <= MANY:
        gaps += [c.signed_gap for c in data.diagnosis_after.classes if c.n > 0]
    low = min(0.0, *gaps, float(np.quantile([c.gap_low for c in seen], tail)))
    high = max(0.0, *gaps, float(np.quantile([c.gap_high for c in seen], 1 - tail)))
    room = 0.03 * (high - low) or 0.05
    return [round(low - room, 4), round(high + room, 4)]
