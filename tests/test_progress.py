from __future__ import annotations

from hetcal import AutoCalibrator
from hetcal._progress import listen_to_progress, report_progress


def test_a_fit_reports_every_fold(make_sample):
    z, y, _ = make_sample(200, 3, 0)
    steps: list[tuple[int, int]] = []
    with listen_to_progress(lambda completed, total: steps.append((completed, total))):
        AutoCalibrator(cv=3).fit(z, y)
    assert steps == [(1, 4), (2, 4), (3, 4)]  # the fit on all rows is the last step


def test_reports_without_a_listener_are_ignored():
    steps: list[int] = []
    with listen_to_progress(lambda completed, _: steps.append(completed)):
        report_progress(1, 2)
    report_progress(2, 2)
    assert steps == [1]
