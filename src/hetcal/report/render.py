"""From the numbers of a report to text: HTML, Markdown or JSON."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from importlib import resources
from typing import Any

from hetcal._display import display_name
from hetcal._validate import choose
from hetcal.report import words
from hetcal.report.charts import chart_specs, vega_runtime
from hetcal.report.class_charts import KINDS
from hetcal.report.data import ReportData
from hetcal.report.markdown import to_markdown
from hetcal.report.payload import inline_json, page_payload
from hetcal.stacks import share_text

__all__ = ["RENDERERS", "render_report"]

_HEADS = [
    "Class",
    "Verdict",
    "Rows",
    "Accuracy",
    "Confidence",
    "Gap",
    "95% interval",
    "ECE",
    "Floor",
    "ECE after",
    "T",
]


def render_report(data: ReportData, format: str = "html") -> str:  # noqa: A002
    """Write a report as ``"html"``, ``"md"`` or ``"json"``."""
    text = choose(RENDERERS, format, "format")(data)
    return text.encode("utf-8", "replace").decode()  # the name of a file may hold what no text can


def _html(data: ReportData) -> str:
    page = _environment().get_template("page.html.j2")
    specs = chart_specs(data)
    runtime, script = vega_runtime(), _text("page.js")
    text: str = page.render(
        data=data,
        words=words,
        kinds=KINDS,
        charts=set(specs),
        heads=_HEADS + (["More rows"] if data.settling.undecided else []),
        classes=_class_rows(data),
        css=_text("page.css"),
        runtime=runtime,
        script=script,
        hashes=" ".join(f"'{_hash(text)}'" for text in (runtime, script)),
        payload=inline_json(page_payload(data)),
        specs=inline_json(specs),
    )
    return text


def _json(data: ReportData) -> str:
    value = {"schema": 1, "verdict": {"headline": words.headline(data), "text": " ".join(words.lead(data))}}
    return json.dumps(value | data.to_dict(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _environment() -> Any:
    try:
        import jinja2
    except ImportError:
        raise ImportError('the page needs jinja2; install it with: pip install "hetcal[report]"') from None
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("hetcal.report", "static"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    made.filters |= {"pct": words.percent, "signed": words.signed, "num": words.number, "short": display_name}
    made.filters["share"] = share_text
    return made


def _text(name: str) -> str:
    return (resources.files("hetcal.report") / "static" / name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    """Name by which a content security policy lets a script run."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _class_rows(data: ReportData) -> list[dict[str, Any]]:
    """Rows of the table of classes, by falling signed gap, those never predicted last."""
    after, alpha = data.diagnosis_after.classes, data.path.alpha[-1]
    rows = [
        {
            "c": c,
            "after": after[c.index],
            "kind": KINDS[c.kind],
            "temperature": _temperature(data, c.index, alpha[c.index]),
        }
        for c in data.diagnosis.classes
    ]
    return sorted(rows, key=lambda r: -r["c"].signed_gap if r["c"].n else 2)


def _temperature(data: ReportData, k: int, alpha: float) -> str:
    if not data.path.n_fit[k]:
        return "–"
    if data.path.at_bound[k]:
        return "→ 0" if alpha > 1 else "→ ∞"
    return f"{1 / alpha:.2f}"


RENDERERS: dict[str, Callable[[ReportData], str]] = {"html": _html, "md": to_markdown, "json": _json}
