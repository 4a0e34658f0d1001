"""Rendering of a report as HTML, Markdown or JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from hetcal._validate import choose
from hetcal.report import sentences
from hetcal.report.data import ReportData
from hetcal.report.markdown import to_markdown
from hetcal.report.page import to_html

__all__ = ["RENDERERS", "render_report"]


def render_report(data: ReportData, format: str = "html") -> str:  # noqa: A002
    """Return a report as text in the format ``"html"``, ``"md"`` or ``"json"``."""
    text = choose(RENDERERS, format, "format")(data)
    return text.encode("utf-8", "replace").decode()  # file names may contain lone surrogates


def _to_json(data: ReportData) -> str:
    verdict = {
        "finding": data.finding,
        "headline": sentences.headline(data),
        "text": " ".join([*sentences.lead(data), *sentences.summary(data)]),
        "residual_shape": sentences.residual_shape(data),
    }
    values: dict[str, Any] = {"schema": 1, "verdict": verdict} | data.to_dict()
    values["recommended"]["advice"] = sentences.advice(data)
    for row, c in zip(values["classes"], data.diagnosis.classes, strict=True):
        row["explanation"] = sentences.explanation(data, c)
        row["wrong_labels"] = sentences.wrong_labels(data, c)
    return json.dumps(values, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


RENDERERS: dict[str, Callable[[ReportData], str]] = {"html": to_html, "md": to_markdown, "json": _to_json}
