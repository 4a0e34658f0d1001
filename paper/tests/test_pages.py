"""The committed pages agree with the committed results."""

from pathlib import Path

import pytest

from hetcal_paper import pages

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "paper" / "results"
PAGES = ROOT / "docs" / "reproduction"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs")
    pages.write_pages(RESULTS, folder)
    return folder


def test_every_page_is_committed(written: Path) -> None:
    names = {path.name for path in written.rglob("*.md")}
    assert names
    assert names == {path.name for path in PAGES.glob("*.md")}


def test_committed_pages_agree_with_committed_results(written: Path) -> None:
    stale = [
        path.name
        for path in written.rglob("*.md")
        if path.read_text(encoding="utf-8") != (PAGES / path.name).read_text(encoding="utf-8")
    ]
    assert not stale, "write the pages again with: hetcal pages"


def test_every_result_has_a_figure(written: Path) -> None:
    figures = {path.name: path for path in written.rglob("*.svg")}
    assert figures.keys() == {path.name for path in PAGES.glob("*.svg")}
    assert all(path.stat().st_size > 1000 for path in figures.values())
