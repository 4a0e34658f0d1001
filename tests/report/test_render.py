from __future__ import annotations

import base64
import hashlib
import html.parser
import json
import re
import subprocess
import sys
from typing import Any

import pytest

from hetcal.logits_files import LogitsFile
from hetcal.report import ReportData, make_report, render_report
from hetcal.report.payload import inline_json, page_payload


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


def test_the_page_has_every_section_in_order(page: Page) -> None:
    sections = [attrs["id"] for tag, attrs in page.tags if tag == "section"]
    expected = "remedy reliability classes map methods temperatures groups training settling how"
    assert sections == expected.split()


def test_class_names_are_text_and_nothing_else(page: Page, nasty_names: tuple[str, ...]) -> None:
    assert len(page.scripts) == 4  # data, charts, Vega, the page's own
    assert not [tag for tag, _ in page.tags if tag in ("img", "iframe", "object")]
    assert "i" not in [tag for tag, attrs in page.tags if "class" not in attrs]  # of the title
    assert "b" not in [tag for tag, attrs in page.tags if tag == "b" and attrs]
    text = "".join(page.words)
    assert all(name in text for name in nasty_names)


def test_a_chart_has_words_for_those_who_do_not_see_it(page: Page) -> None:
    plots = [attrs for _, attrs in page.tags if attrs.get("class") == "plot"]
    assert len(plots) == 8
    assert all(attrs["role"] == "img" and len(attrs["aria-label"] or "") > 20 for attrs in plots)


def test_only_the_two_scripts_of_the_page_may_run(page: Page) -> None:
    policy = next(a["content"] or "" for t, a in page.tags if t == "meta" and a.get("http-equiv"))
    assert "default-src 'none'" in policy
    for script in page.scripts[2:]:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy


def test_the_page_refers_to_no_other_place(page: Page) -> None:
    links = [v for _, attrs in page.tags for k, v in attrs.items() if k in ("src", "href", "action")]
    assert all(link is not None and link.startswith(("#", "data:")) for link in links)


def test_json_in_a_script_has_no_tags() -> None:
    value = {"name": "</script><!-- & \u2028"}
    text = inline_json(value)
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == value


def test_payload_holds_bins_that_add_up(report_data: ReportData) -> None:
    payload = page_payload(report_data)
    for k, flat in enumerate(payload["bins"][0]):
        assert sum(flat[1::4]) == payload["n"][k]
    assert sum(payload["whole"][0][1::4]) == report_data.settings.n_judged


def test_the_same_seed_gives_the_same_text(logits_file: LogitsFile, report_data: ReportData) -> None:
    first = make_report(logits_file, format="md")
    assert make_report(logits_file, format="md") == first
    assert render_report(report_data, "html") == render_report(report_data, "html")


def test_json_is_valid_and_holds_all_classes(report_data: ReportData, nasty_names: tuple[str, ...]) -> None:
    value = json.loads(render_report(report_data, "json"))
    assert [row["name"] for row in value["classes"]] == list(nasty_names)
    assert value["methods"][0]["method"] == "Uncal"
    worst, before = value["worst_class"], value["methods"][0]
    assert (worst["ece"], worst["floor"]) == (before["max_ece"], before["max_ece_floor"])
    assert worst["ece"] == max(row["ece"] for row in value["classes"])
    assert worst["floor_q95"] == report_data.before.floor_q95["max_ece"] > worst["floor"]
    assert worst["name"] == nasty_names[worst["index"]] == report_data.before.worst_class
    assert value["gamma_path"]["gamma"][-1] == "inf"
    assert value["settings"]["n_bins"] == 15


def test_json_of_thin_data_has_null_for_what_is_not_known(thin_data: ReportData) -> None:
    value = json.loads(render_report(thin_data, "json"), parse_constant=pytest.fail)
    assert value["classes"][2]["ece"] is None
    assert value["training"] == {"correlation": None, "p_value": None}


def test_markdown_tables_keep_their_columns(report_data: ReportData) -> None:
    text = render_report(report_data, "md")
    assert text.startswith("# A \\<i\\>title\\</i\\>\n")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    width = {len(re.findall(r"(?<!\\)\|", row)) for row in rows}
    assert width == {4, 11, 5, 10}  # verdict; methods and classes; candidates; groups
    assert "<script>" not in text
    fence = "\n````\n"  # longer than the ticks in the name of the file
    _, inside, after = text.split(fence)
    assert inside.startswith("hetcal report 'my logits ```\n<img src=x>?.npz' --bins 15")
    assert "--train-counts counts.csv -o report.html" in inside
    assert not after


def test_every_format_shows_the_weights(report_data: ReportData, page: Page) -> None:
    text, made = render_report(report_data, "md"), json.loads(render_report(report_data, "json"))
    members = made["recommended"]["members"]
    assert made["recommended"]["decisions_changed"] == 0
    assert list(members.values()) == sorted(members.values(), reverse=True)
    rows = "".join(page.words).split("How the recommended method was made")[1]
    for c in report_data.candidates:
        share = f"{c['weight']:.0%}" if c["weight"] >= 0.005 else "<1%" if c["weight"] else "–"
        mark = "**" if c["name"] in members else ""
        assert f"| {mark}{c['name']}{mark} | {mark}{share}{mark} |" in text
        assert f"{c['name']}{c['meaning']}{share}{c['nll']:.5f}" in rows
        assert members.get(c["name"], 0) == (c["weight"] if c["weight"] >= 0.005 else 0)
    assert [a.get("class") for t, a in page.tags if t == "tr"].count("best") == len(members) + 1  # and Auto


def test_thin_data_make_a_page_too(thin_data: ReportData) -> None:
    text = render_report(thin_data, "html")
    assert "too few rows" in text
    assert "1 is never predicted here" in text
    assert f"hetcal.make_report(logits, labels, n_bins=15, rng={thin_data.settings.seed})" in text


@pytest.mark.parametrize("missing", ["altair", "vl_convert", "jinja2"])
def test_a_missing_package_is_named_with_its_extra(
    report_data: ReportData, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ImportError, match=r'pip install "hetcal\[report\]"'):
        render_report(report_data, "html")
    assert render_report(report_data, "md")


def test_importing_the_report_loads_no_optional_package() -> None:
    code = "import hetcal.report, sys; print({'altair', 'vl_convert', 'jinja2'} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert out.stdout.strip() == "set()"
