from __future__ import annotations

import importlib.util
import json
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from hetcal.report import ReportData, vega
from hetcal.report.page import KINDS

ROOT = Path(__file__).parents[2]


@pytest.fixture
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(vega, "vega_runtime", vega.vega_runtime.__wrapped__)  # bypass the in-memory cache
    return tmp_path / "hetcal"


def test_compiled_charts_are_up_to_date() -> None:
    alt, vl_convert = pytest.importorskip("altair"), pytest.importorskip("vl_convert")
    static = resources.files("hetcal.report") / "static" / "charts.json"
    shipped = json.loads(static.read_text(encoding="utf-8"))
    installed = {"altair": alt.__version__, "vl_convert": vl_convert.__version__}
    if shipped["compiled_by"] != installed:
        pytest.skip("other versions compile to other specifications")
    path = ROOT / "tools" / "build_charts.py"
    if not path.exists():
        pytest.skip("the tools are not part of this distribution")
    spec = importlib.util.spec_from_file_location("build_charts", path)
    assert spec is not None
    assert spec.loader is not None
    build_charts = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build_charts)
    assert build_charts.compile_charts() == shipped["charts"]
    assert set(build_charts.KINDS) == set(KINDS.values())


def test_signals_exist_in_the_charts(report_data: ReportData) -> None:
    specs = vega.chart_specs(report_data)
    for name, signals in vega.chart_signals(report_data).items():
        declared = {signal["name"] for signal in specs[name]["signals"]}
        assert set(signals) - {"opacity"} <= declared  # only the chart of many classes has an opacity


def test_runtime_is_bundled_once(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vega, "_bundle_vega", lambda: "bundled")
    runtime = vega.vega_runtime()
    assert "bundled" in runtime
    monkeypatch.setattr(vega, "_bundle_vega", pytest.fail)
    assert vega.vega_runtime() == runtime


def test_runtime_needs_no_cache(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty_cache.write_text("a file in place of the folder")
    monkeypatch.setattr(vega, "_bundle_vega", lambda: "bundled")
    assert "bundled" in vega.vega_runtime()


@pytest.mark.parametrize("damage", [lambda text: text[:-3], lambda text: text + "alert(1)", lambda _: ""])
def test_damaged_cache_is_replaced(empty_cache: Path, monkeypatch: pytest.MonkeyPatch, damage: Any) -> None:
    monkeypatch.setattr(vega, "_bundle_vega", lambda: "bundled")
    runtime = vega.vega_runtime()
    (cached,) = empty_cache.iterdir()
    content = cached.read_text()
    cached.write_text(damage(content))
    assert vega.vega_runtime() == runtime
    assert cached.read_text() == content


def test_a_link_in_the_cache_is_not_followed(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vega, "_bundle_vega", lambda: "bundled")
    vega.vega_runtime()
    (cached,) = empty_cache.iterdir()
    target = empty_cache.parent / "target"
    target.write_text("precious")
    cached.unlink()
    cached.symlink_to(target)
    assert "bundled" in vega.vega_runtime()
    assert target.read_text() == "precious"


def test_users_without_a_home_have_no_cache(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home(_: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "expanduser", no_home)
    monkeypatch.setattr(vega, "_bundle_vega", lambda: "bundled")
    assert "bundled" in vega.vega_runtime()
    assert not empty_cache.exists()


def test_the_bundle_defines_vega_embed() -> None:
    pytest.importorskip("vl_convert")
    assert "window.vegaEmbed=" in vega._bundle_vega()


def test_missing_package_is_named_with_its_extra(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(ImportError, match=r"vl-convert.*hetcal\[report\]"):
        vega.vega_runtime()
