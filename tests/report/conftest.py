"""One small report with hostile class names, one with few rows, and a browser to open them."""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest

from hetcal.calibrators import AutoCalibrator, Identity, TemperatureScaling
from hetcal.logits_files import LogitsFile, Split
from hetcal.report import ReportData, collect, collect_report, render_report

NAMES = (
    "<script>window.hacked = 1</script>",
    "</script><img src=x onerror='window.hacked = 1'>",
    "x" * 300,
    "family 👩‍👩‍👧‍👦 of emoji 🦊",
    "שלום עולם: right to left",
    "twin",
    "twin",
    "two\nlines & \"quotes\" | *stars* _and_ `ticks`",
)  # fmt: skip
PATH = "/somewhere/my logits ```\n<img src=x>\ud800.npz"


class MakeSplit(Protocol):
    def __call__(self, n: int, seed: int, n_classes: int = 8) -> Split: ...


@pytest.fixture(scope="session")
def make_split() -> MakeSplit:
    """Gaussian classes, calibrated except for a factor that increases with the predicted class."""

    def make(n: int, seed: int, n_classes: int = 8) -> Split:
        rng = np.random.default_rng(seed)
        labels = rng.integers(0, n_classes, n)
        z = rng.normal(size=(n, n_classes))
        z[np.arange(n), labels] += 1.8
        factor = np.linspace(0.5, 2.2, n_classes)[z.argmax(axis=1)]
        return Split(1.8 * factor[:, None] * z, labels)

    return make


@pytest.fixture(scope="session")
def hostile_names() -> tuple[str, ...]:
    return NAMES


@pytest.fixture(scope="session")
def logits_file(make_split: MakeSplit) -> LogitsFile:
    return LogitsFile(make_split(800, 0), make_split(1200, 1), list(NAMES), PATH)


@pytest.fixture(scope="session")
def report_options() -> dict[str, Any]:
    groups = np.where(np.arange(1200) % 3 == 0, "<b>night</b>", "day")
    return {"train_counts": np.arange(8, 0, -1) * 100, "groups": groups, "title": "A <i>title</i>"}


@pytest.fixture(scope="session")
def report_data(logits_file: LogitsFile, report_options: dict[str, Any]) -> ReportData:
    return collect_report(logits_file, **report_options)


@pytest.fixture(scope="session")
def noise_data(logits_file: LogitsFile) -> ReportData:
    """A report with the sensitivity to wrong labels."""
    return collect_report(logits_file, max_noise=0.2)


@pytest.fixture(scope="session")
def thin_data(make_split: MakeSplit) -> ReportData:
    """A report on one small set of rows, in which class 2 is never predicted."""
    rows = make_split(160, 3)
    z = rows.logits.copy()
    z[:, 2] = z.min() - 1
    return collect_report(z, rows.labels, train_counts=[5] * 8, rng=np.random.default_rng(4))


@pytest.fixture
def few_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare two methods only, for tests that do not depend on the methods."""
    methods = {"Uncal": ("", Identity()), "TS": ("", TemperatureScaling())}
    monkeypatch.setattr(collect, "_METHODS", methods)
    monkeypatch.setattr(
        collect, "AutoCalibrator", functools.partial(AutoCalibrator, {"TS": TemperatureScaling()})
    )


@pytest.fixture(scope="session")
def page_file(report_data: ReportData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(render_report(report_data, "html"), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Headless Chromium; without it the test is skipped, or fails if HETCAL_BROWSER=required."""
    binary = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    driver = shutil.which("chromedriver")
    if binary is None or driver is None:
        reason = "Chromium and chromedriver are not installed; run tools/install_browser.sh"
        if os.environ.get("HETCAL_BROWSER") == "required":
            pytest.fail(reason)
        pytest.skip(reason)
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = binary
    flags = "headless no-sandbox disable-gpu disable-quic no-first-run disable-background-networking"
    for flag in (*flags.split(), "disable-component-update", "disable-sync", "disable-dev-shm-usage"):
        options.add_argument(f"--{flag}")
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('profile')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(driver))
    driver.set_script_timeout(60)
    driver.get("about:blank")  # leave the start page of the browser, which loads its own pictures
    yield driver
    driver.quit()
