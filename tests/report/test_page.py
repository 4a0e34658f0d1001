from __future__ import annotations

import base64
import hashlib
import html.parser
import json
import re
import sys
from typing import Any

import pytest

from hetcal._format import percent
from hetcal.report import ReportData, render_report
from hetcal.report.page import inline_json, page_payload


class Page(html.parser.HTMLParser):
    """Tags, scripts and visible text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] == "script" and self.lasttag == "script" and self.cdata_elem:
            self.scripts[-1] += data
        elif self.cdata_elem is None:
            self.words.append(data)


@pytest.fixture(scope="module")
def page(page_file: Any) -> Page:
    return Page(page_file.read_text(encoding="utf-8"))


def test_class_names_are_escaped(page: Page, hostile_names: tuple[str, ...]) -> None:
    assert len(page.scripts) == 4  # data, charts, Vega, the page's own
    assert not [tag for tag, _ in page.tags if tag in ("img", "iframe", "object")]
    # The tag <i> in the title is escaped.
    assert "i" not in [tag for tag, attrs in page.tags if "class" not in attrs]
    assert "b" not in [tag for tag, attrs in page.tags if tag == "b" and attrs]
    text = "".join(page.words)
    assert all(name in text for name in hostile_names)


def test_every_chart_has_a_text_alternative(page: Page) -> None:
    plots = [attrs for _, attrs in page.tags if attrs.get("class") == "plot"]
    assert len(plots) == 8
    assert all(attrs["role"] == "img" and len(attrs["aria-label"] or "") > 20 for attrs in plots)


def test_only_the_two_scripts_of_the_page_may_run(page: Page) -> None:
    policy = next(a["content"] or "" for t, a in page.tags if t == "meta" and a.get("http-equiv"))
    assert "default-src 'none'" in policy
    for script in page.scripts[2:]:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy


def test_the_page_loads_nothing(page: Page) -> None:
    links = [v for _, attrs in page.tags for k, v in attrs.items() if k in ("src", "href", "action")]
    assert all(link is not None and link.startswith(("#", "data:")) for link in links)


def test_json_in_a_script_has_no_tags() -> None:
    value = {"name": "</script><!-- & \u2028"}
    text = inline_json(value)
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == value


def test_bins_of_the_payload_add_up(report_data: ReportData) -> None:
    payload = page_payload(report_data)
    for k, flat in enumerate(payload["bins"][0]):
        assert sum(flat[1::4]) == payload["n"][k]
    assert sum(payload["whole"][0][1::4]) == report_data.settings.n_judged


def test_sections_and_headings_are_labelled(page: Page) -> None:
    sections = [attrs for tag, attrs in page.tags if tag == "section"]
    ids = {attrs.get("id") for _, attrs in page.tags}
    assert len(sections) > 5
    assert all(attrs["aria-labelledby"] in ids for attrs in sections)


def test_the_worst_class_is_shown_with_the_floor_of_the_worst(report_data: ReportData) -> None:
    card = re.split('<div class="card">', render_report(report_data, "html"))[-1].split("</div>")[0]
    assert percent(report_data.before.max_ece) in card
    assert percent(report_data.before.floor["max_ece"]) in card
    # The floor of a single class would ignore that the worst class was selected.
    assert percent(report_data.worst.floor) not in card


def test_candidates_are_listed_with_their_weights(report_data: ReportData, page: Page) -> None:
    text = "".join(page.words)
    for c in report_data.candidates:
        share = f"{c['weight']:.0%}" if c["weight"] >= 0.005 else "<1%" if c["weight"] else "–"
        assert f"{c['name']}{c['meaning']}{share}{c['nll']:.5f}" in text
    highlighted = [attrs.get("class") for tag, attrs in page.tags if tag == "tr"].count("best")
    assert highlighted == len(report_data.members) + 1  # plus the row of Auto


def test_few_rows(thin_data: ReportData) -> None:
    text = render_report(thin_data, "html")
    assert 'data-kind="few"' in text
    seed = thin_data.settings.seed
    command = f"hetcal.make_report(logits, labels, train_counts=train_counts, n_bins=15, rng={seed})"
    assert command in "".join(Page(text).words)


def test_missing_jinja_is_named_with_its_extra(
    report_data: ReportData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ImportError, match=r"hetcal\[report\]"):
        render_report(report_data, "html")
