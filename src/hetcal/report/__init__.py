"""Reports on a classifier's calibration: a self-contained HTML page, Markdown or JSON."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from hetcal._validate import check_number, choose
from hetcal.logits_files import LogitsFile
from hetcal.report.collect import as_logits_file, collect_data
from hetcal.report.data import ReportData
from hetcal.report.gates import check_gates, parse_gates
from hetcal.report.render import RENDERERS, render_report

__all__ = ["ReportData", "check_gates", "check_request", "collect_report", "make_report", "render_report"]


def make_report(
    data: LogitsFile | ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    probs: ArrayLike | None = None,
    class_names: ArrayLike | None = None,
    train_counts: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    n_bins: int = 15,
    max_noise: float | None = None,
    format: str = "html",  # noqa: A002
    title: str | None = None,
    rng: np.random.Generator | int = 0,
) -> str:
    """Diagnose a classifier, compare calibrators and write the results as HTML, Markdown or JSON.

    Parameters
    ----------
    data : LogitsFile from :func:`hetcal.load_logits`, or array of shape (n, K) with logits, optional
        Required unless `probs` is passed. Calibrators are fitted on the validation rows of a file and
        evaluated on its test rows. If there is only one set of rows, five-fold cross-fitting is used.
    labels : array of shape (n,), optional
        True classes. Required unless `data` is a LogitsFile, which contains its labels.
    probs : array of shape (n, K), optional
        Probabilities instead of `data`. An array of shape (n,) contains the probabilities of class 1.
    class_names : K strings, optional
        By default those of the file or of the columns of a data frame, otherwise the class indices.
    train_counts : array of shape (K,), optional
        Number of training rows of each class, to compare with its gap (confidence minus accuracy).
    groups : array of shape (n,), optional
        Group of each evaluated row, as integers or strings; adds a table by group. By default the groups of
        the file.
    n_bins : int
        Number of equal-width confidence bins.
    max_noise : float, optional
        Also show, for each over-confident class, how many wrong labels would change its verdict. Noise rates
        up to `max_noise` are tried (:func:`hetcal.label_noise.sensitivity`). With many classes, this takes
        several times as long as the rest of the report.
    format : {"html", "md", "json"}
    title : str, optional
        By default the title in the file, or else the file name, or "Calibration report" if there is neither.
    rng : numpy.random.Generator or int
        Seed for the simulations of perfect calibration, or a generator from which the seed is drawn.

    Returns
    -------
    str
        The report in the given format. It is identical for identical input and seed. The HTML page loads
        nothing from the network.
    """
    check_request(format)
    report = collect_report(
        data, labels, probs=probs, class_names=class_names, train_counts=train_counts, groups=groups,
        n_bins=n_bins, max_noise=max_noise, title=title, rng=rng,
    )  # fmt: skip
    return render_report(report, format)


def collect_report(
    data: LogitsFile | ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    probs: ArrayLike | None = None,
    class_names: ArrayLike | None = None,
    train_counts: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    n_bins: int = 15,
    max_noise: float | None = None,
    title: str | None = None,
    rng: np.random.Generator | int = 0,
) -> ReportData:
    """Compute the numbers of :func:`make_report`; the parameters are the same, but there is no `format`."""
    if max_noise is not None:
        max_noise = check_number(max_noise, "max_noise", above=0, below=1)
    source = as_logits_file(data, labels, groups, probs, class_names)
    return collect_data(
        source, class_names=class_names, train_counts=train_counts, has_groups=groups is not None,
        n_bins=n_bins, max_noise=max_noise, title=title, rng=rng,
    )  # fmt: skip


def check_request(format: str = "html", limits: Sequence[str] = ()) -> None:  # noqa: A002
    """Raise an error if `format` or a limit for :func:`check_gates` is invalid; compute nothing."""
    choose(RENDERERS, format, "format")
    parse_gates(limits)
