"""One self-contained page that shows what is wrong with a classifier's confidence and what mends it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from hetcal._validate import choose
from hetcal.logits_files import LogitsFile
from hetcal.report.data import ReportData
from hetcal.report.gates import check_gates, parse_gates
from hetcal.report.gather import as_logits_file, collect
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
    format: str = "html",  # noqa: A002
    title: str | None = None,
    rng: np.random.Generator | int = 0,
) -> str:
    """Diagnose logits, compare calibrators, and write it all as one page, Markdown or JSON.

    Parameters
    ----------
    data : :class:`hetcal.logits_files.LogitsFile`, or (n, K) logits together with `labels`
        Calibrators are fitted on the validation rows of a file and judged on its test rows. With one set
        only, each row is judged by a fit on the other four fifths.
    labels : (n,) true classes, for an array of logits or probabilities
    probs : (n, K) probabilities, in place of `data`
    class_names : K texts; by default those of the file, or the class numbers
    train_counts : (K,) training rows per class, to set against the gaps
    groups : (n,) integers or strings, one per judged row
        Adds a table by group; by default the groups of the file.
    n_bins : number of equal-width confidence bins
    format : ``"html"``, ``"md"`` or ``"json"``
    title : by default what the file says of itself, or its name
    rng : generator or seed of the redraws behind the noise floors

    Returns
    -------
    str
        The same for the same input and seed. The page loads nothing from the network.
    """
    check_request(format)
    made = collect_report(
        data, labels, probs=probs, class_names=class_names, train_counts=train_counts, groups=groups,
        n_bins=n_bins, title=title, rng=rng,
    )  # fmt: skip
    return render_report(made, format)


def collect_report(
    data: LogitsFile | ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    probs: ArrayLike | None = None,
    class_names: ArrayLike | None = None,
    train_counts: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    n_bins: int = 15,
    title: str | None = None,
    rng: np.random.Generator | int = 0,
) -> ReportData:
    """Compute the numbers of :func:`make_report`, for :func:`render_report` and :func:`check_gates`."""
    source = as_logits_file(data, labels, groups, probs, class_names)
    return collect(
        source, class_names=class_names, train_counts=train_counts, n_bins=n_bins, title=title, rng=rng
    )


def check_request(format: str = "html", limits: Sequence[str] = ()) -> None:  # noqa: A002
    """Refuse an unknown format, or a limit that :func:`check_gates` would refuse, before the work is done."""
    choose(RENDERERS, format, "format")
    parse_gates(limits)
