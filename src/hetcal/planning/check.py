"""Whether a plan made from a part of the rows foretells what all of them give."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hetcal._typing import FloatArray, IntArray
from hetcal._validate import CONVERT_PROBS, as_generator, check_labels, check_logits
from hetcal.planning.curve import Interval
from hetcal.planning.inputs import check_methods
from hetcal.planning.plan import plan_validation_size
from hetcal.planning.sampling import HELD_OUT, OnStep, fit_quietly, row_losses
from hetcal.planning.text import aligned, interval_dict

__all__ = ["QuarterCheck", "QuarterLine", "check_quarter"]


@dataclass(frozen=True)
class QuarterLine:
    """One method: what the part foretold and what all rows gave.

    Attributes
    ----------
    method : str
    predicted : Interval
        Held-out NLL of a fit on all rows, foretold from the part.
    measured, error : float
        The same measured on the judged rows, and its standard error.
    gain : Interval or None
        Foretold gain over the pooled temperature; None for that one itself.
    measured_gain, gain_error : float
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
        """Whether the measured NLL lies in the foretold interval."""
        return self.predicted.low <= self.measured <= self.predicted.high

    @property
    def gain_inside(self) -> bool:
        """Whether the measured gain lies in the foretold interval; true where there is none."""
        return self.gain is None or self.gain.low <= self.measured_gain <= self.gain.high


@dataclass(frozen=True)
class QuarterCheck:
    """What :func:`check_quarter` finds: a line per method, from `n_part` rows for `n` rows."""

    n_part: int
    n: int
    n_judged: int
    level: float
    lines: tuple[QuarterLine, ...]

    @property
    def holds(self) -> bool:
        """Whether every measured NLL lies in its interval."""
        return all(line.inside for line in self.lines)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
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
            f"Foretold from {self.n_part:,} rows for a fit on {self.n:,}, and measured on {self.n_judged:,} "
            f"others ({100 * self.level:g}% intervals)"
        )
        seen = ("measured", "inside")
        table: list[tuple[str, ...]] = [("method", "NLL foretold", *seen, "gain foretold", *seen)]
        for line in self.lines:
            gain = ("", "", "")
            if line.gain is not None:
                gain = (_show(line.gain), f"{line.measured_gain:.4f}", _YES[line.gain_inside])
            nll = (_show(line.predicted), f"{line.measured:.4f}", _YES[line.inside])
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
    rng: np.random.Generator | int = 0,
    on_step: OnStep | None = None,
) -> QuarterCheck:
    """Plan on a random quarter of the rows, foretell the NLL of a fit on all, and fit on all to see.

    The NLL is measured on the test rows; without any, a random fifth of the rows is set apart for it first.

    Parameters
    ----------
    logits, labels : (n, K) and (n,) validation rows
    test_logits, test_labels : rows to judge on
    share : part of the rows to plan on
    methods, n_repeats, level, rng, on_step : as in :func:`plan_validation_size`
    """
    if not 0 < share < 1:
        raise ValueError(f"share must lie strictly between 0 and 1, got {share!r}; a quarter is the default")
    z = check_logits(logits, probs_remedy=CONVERT_PROBS)
    y = check_labels(labels, n_rows=len(z), n_classes=z.shape[1], table=logits)
    generator = as_generator(rng)
    order = generator.permutation(len(z))
    if test_logits is None or test_labels is None:
        apart, order = np.split(order, [math.ceil(HELD_OUT * len(z))])
        zt, yt = z[apart], y[apart]
    else:
        zt = check_logits(test_logits, n_classes=z.shape[1], name="test_logits", probs_remedy=CONVERT_PROBS)
        yt = check_labels(test_labels, n_rows=len(zt), n_classes=z.shape[1], name="test_labels")
    part = order[: max(1, round(share * len(order)))]
    chosen = check_methods(methods)
    plan = plan_validation_size(
        z[part], y[part], methods=chosen, n_repeats=n_repeats, level=level, rng=generator, on_step=on_step
    )
    losses = _measure(chosen, z[order], y[order], zt, yt)
    lines = []
    for name, loss in losses.items():
        foretold = plan.predict(name, len(order))
        gain = None if name == plan.pooled else foretold.gain
        gained = loss * 0 if plan.pooled is None else losses[plan.pooled] - loss
        lines.append(QuarterLine(name, foretold.nll, *_mean_and_error(loss), gain, *_mean_and_error(gained)))
    return QuarterCheck(len(part), len(order), len(zt), level, tuple(lines))


_YES = {True: "yes", False: "no"}


def _measure(
    methods: Mapping[str, Any], z: FloatArray, y: IntArray, zt: FloatArray, yt: IntArray
) -> dict[str, NDArray[np.float64]]:
    return {name: row_losses(fit_quietly(method, z, y), zt, yt) for name, method in methods.items()}


def _mean_and_error(values: NDArray[np.float64]) -> tuple[float, float]:
    return float(values.mean()), float(values.std() / math.sqrt(len(values)))


def _show(interval: Interval) -> str:
    return f"{interval.value:.4f} ({interval.low:.4f} to {interval.high:.4f})"
