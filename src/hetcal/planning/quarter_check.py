"""Check of the planning method: compare the NLL predicted from a quarter of the rows with measured NLLs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hetcal._numeric.rows import prepare
from hetcal._typing import Float
from hetcal._validate import as_generator, check_labelled, check_number, check_test_rows
from hetcal.planning.learning_curve import Interval
from hetcal.planning.plan import check_methods, plan_validation_size
from hetcal.planning.subsampling import HELD_OUT, OnStep, fit_quietly, row_losses
from hetcal.planning.text import aligned, interval_dict

__all__ = ["QuarterCheck", "QuarterLine", "check_quarter"]


@dataclass(frozen=True)
class QuarterLine:
    """Predicted and measured scores of one method.

    Attributes
    ----------
    method : str
    predicted : Interval
        Predicted NLL of a fit on all rows that are not set aside for the measurement.
    measured, error : float
        Measured NLL of that fit on the test rows, and its standard error.
    gain : Interval or None
        Predicted reduction of the NLL relative to the method with one temperature for all classes. None for
        that method itself, and if there is no such method.
    measured_gain, gain_error : float
        Measured gain and its standard error; 0 if `gain` is None.
    """

    method: str
    predicted: Interval
    measured: float
    error: float
    gain: Interval | None
    measured_gain: float
    gain_error: float

    @property
    def inside(self) -> bool:
        """Whether the measured NLL is within the predicted interval."""
        return self.predicted.low <= self.measured <= self.predicted.high

    @property
    def gain_inside(self) -> bool:
        """Whether the measured gain is within the predicted interval; true if no gain is predicted."""
        return self.gain is None or self.gain.low <= self.measured_gain <= self.gain.high


@dataclass(frozen=True)
class QuarterCheck:
    """Result of :func:`check_quarter`: one line per method.

    Attributes
    ----------
    n_part, n, n_judged : int
        Numbers of rows used to predict, to fit and to evaluate.
    level : float
        Confidence level of the predicted intervals.
    lines : tuple of QuarterLine
    """

    n_part: int
    n: int
    n_judged: int
    level: float
    lines: tuple[QuarterLine, ...]

    @property
    def holds(self) -> bool:
        """Whether every measured NLL is within its interval."""
        return all(line.inside for line in self.lines)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-compatible values; None replaces infinite numbers, and gains that are not predicted."""
        lines = [
            {
                "method": line.method,
                "predicted": interval_dict(line.predicted),
                "measured": line.measured,
                "error": line.error,
                "inside": line.inside,
                "gain": interval_dict(line.gain),
                "measured_gain": None if line.gain is None else line.measured_gain,
                "gain_error": None if line.gain is None else line.gain_error,
                "gain_inside": None if line.gain is None else line.gain_inside,
            }
            for line in self.lines
        ]
        head = {"n_part": self.n_part, "n": self.n, "n_judged": self.n_judged, "level": self.level}
        return head | {"holds": self.holds, "lines": lines}

    def __str__(self) -> str:
        title = (
            f"Predicted from {self.n_part:,} rows for a fit on {self.n:,}, measured on {self.n_judged:,} "
            f"other rows ({100 * self.level:g}% intervals)"
        )
        columns = ("measured", "inside")
        table: list[tuple[str, ...]] = [("method", "predicted NLL", *columns, "predicted gain", *columns)]
        for line in self.lines:
            gain = ("", "", "")
            if line.gain is not None:
                gain = (_interval_text(line.gain), f"{line.measured_gain:.4f}", _yes_no(line.gain_inside))
            nll = (_interval_text(line.predicted), f"{line.measured:.4f}", _yes_no(line.inside))
            table.append((line.method, *nll, *gain))
        return "\n".join([title, *aligned(table)])


def check_quarter(
    logits: ArrayLike,
    labels: ArrayLike,
    test_logits: ArrayLike | None = None,
    test_labels: ArrayLike | None = None,
    *,
    share: float = 0.25,
    methods: Mapping[str, Any] | None = None,
    n_repeats: int = 20,
    level: float = 0.95,
    class_names: ArrayLike | None = None,
    rng: np.random.Generator | int = 0,
    on_step: OnStep | None = None,
) -> QuarterCheck:
    """Predict the NLL of a fit from a random quarter of its rows, and compare it with the measured NLL.

    The NLL is measured on the test rows. If no test rows are passed, a random fifth of the rows is set aside
    as test rows, and each method is fitted on the remaining rows.

    Parameters
    ----------
    logits, labels : arrays of shape (n, K) and (n,)
        Validation rows.
    test_logits, test_labels : arrays of shape (m, K) and (m,), optional
        Rows to evaluate on.
    share : float
        Fraction of the rows of the fit from which its NLL is predicted.
    methods, n_repeats, level, class_names, rng, on_step
        As in :func:`plan_validation_size`.

    Returns
    -------
    QuarterCheck
    """
    share = check_number(share, "share", above=0, below=1, remedy="0.25 is the default")
    z, y, _ = check_labelled(logits, labels, class_names)
    generator = as_generator(rng)
    order = generator.permutation(len(z))
    if (test_logits is None) != (test_labels is None):
        missing = "test_logits" if test_logits is None else "test_labels"
        raise ValueError(
            f"{missing} must be given, got None; pass both test_logits and test_labels, or neither"
        )
    if test_logits is None:
        held_out, order = np.split(order, [math.ceil(HELD_OUT * len(z))])
        zt, yt = z[held_out], y[held_out]
    else:
        zt, yt = check_test_rows(test_logits, test_labels, logits, class_names, z.shape[1])
    part = order[: max(1, round(share * len(order)))]
    calibrators = check_methods(methods)
    plan = plan_validation_size(
        z[part],
        y[part],
        methods=calibrators,
        n_repeats=n_repeats,
        level=level,
        rng=generator,
        on_step=on_step,
    )
    rows = prepare(z[order], y[order], None)
    losses = {name: row_losses(fit_quietly(c, rows), zt, yt) for name, c in calibrators.items()}
    lines = []
    for name, loss in losses.items():
        forecast = plan.predict(name, len(order))
        gain = None if name == plan.pooled else forecast.gain
        gains = np.zeros_like(loss) if plan.pooled is None else losses[plan.pooled] - loss
        lines.append(QuarterLine(name, forecast.nll, *_mean_and_error(loss), gain, *_mean_and_error(gains)))
    return QuarterCheck(len(part), len(order), len(zt), level, tuple(lines))


def _mean_and_error(values: Float) -> tuple[float, float]:
    return float(values.mean()), float(values.std() / math.sqrt(len(values)))


def _interval_text(interval: Interval) -> str:
    return f"{interval.value:.4f} ({interval.low:.4f} to {interval.high:.4f})"


def _yes_no(value: bool) -> str:
    return "yes" if value else "no"
