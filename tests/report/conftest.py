"""One small report with class names that try to break it, and a browser to look at it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest

from hetcal.logits_files import LogitsFile, Split
from hetcal.report import ReportData, collect_report, render_report

NASTY = (
    "<script>window.hacked = 1</script>",
    "</script><img src=x onerror='window.hacked = 1'>",
    "x" * 300,
    "family 👩‍👩‍👧‍👦 of emoji 🦊",
    "שלום עולם: right to left",
    "twin",
    "twin",
    "two\nlines & \"quotes\" | *stars* _and_ `ticks`",
)  # fmt: skip
NASTY_PATH = "/somewhere/my logits ```\n<img src=x>\ud800.npz"


class MakeSplit(Protocol):
    def __call__(self, n: int, seed: int, n_classes: int = 8) -> Split: ...


@pytest.fixture(scope="session")
def make_split() -> MakeSplit:
    """Maker of Gaussian classes: calibrated but for a factor that grows with the predicted class."""

    def make(n: int, seed: int, n_classes: int = 8) -> Split:
        rng = np.random.default_rng(seed)
        labels = rng.integers(0, n_classes, n)
        z = rng.normal(size=(n, n_classes))
        z[np.arange(n), labels] += 1.8
        factor = np.linspace(0.5, 2.2, n_classes)[z.argmax(axis=1)]
        return Split(1.8 * factor[:, None] * z, labels)

    return make


@pytest.fixture(scope="session")
def nasty_names() -> tuple[str, ...]:
    return NASTY


@pytest.fixture(scope="session")
def logits_file(make_split: MakeSplit) -> LogitsFile:
    return LogitsFile(make_split(800, 0), make_split(1200, 1), list(NASTY), NASTY_PATH)


@pytest.fixture(scope="session")
def report_data(logits_file: LogitsFile) -> ReportData:
    groups = np.where(np.arange(1200) % 3 == 0, "<b>night</b>", "day")
    counts = np.arange(8, 0, -1) * 100
    return collect_report(logits_file, train_counts=counts, groups=groups, title="A <i>title</i>")


@pytest.fixture(scope="session")
def thin_data(make_split: MakeSplit) -> ReportData:
    """One set of a few rows, in which class 2 is never predicted."""
    rows = make_split(160, 3)
    z = rows.logits.copy()
    z[:, 2] = z.min() - 1
    return collect_report(z, rows.labels, train_counts=[5] * 8, rng=np.random.default_rng(4))


@pytest.fixture(scope="session")
def page_file(report_data: ReportData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(render_report(report_data, "html"), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Headless Chromium; where there is none the test is skipped, or fails with HETCAL_BROWSER=required."""
    binary = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    driver = shutil.which("chromedriver")
    if binary is None or driver is None:
        reason = "no Chromium with chromedriver on this machine; tools/install_browser.sh installs them"
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
    made = webdriver.Chrome(options=options, service=Service(driver))
    made.set_script_timeout(60)
    yield made
    made.quit()
