"""Calibration errors and noise floors as a metric of torchmetrics, computed batch by batch.

A noise floor is the distribution of a calibration error for a perfectly calibrated model with the same
confidences. The metric accumulates totals over rows, mainly sums per predicted class and confidence bin. Its
memory does not grow with the number of rows, and the totals of several processes can be combined.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from hetcal._extras import missing_package
from hetcal._numeric.device import chunk_rows, working_type
from hetcal._numeric.probabilities import LEAST_FLOOR
from hetcal._validate import check_flag, check_integer, check_metric_batch, check_names
from hetcal.metrics import Evaluation
from hetcal.metrics.binning import FineBins
from hetcal.metrics.evaluation import evaluation_of_totals
from hetcal.metrics.scores import residual_grid
from hetcal.metrics.totals import Totals, fine_bins_of

try:
    import torch
    from torch import Tensor
    from torchmetrics import Metric
except ImportError as error:
    raise missing_package("hetcal.torchmetrics needs torchmetrics", "torchmetrics") from error

__all__ = ["CalibrationMetrics"]

_SCORES = ("accuracy", "nll", "brier", "ece", "max_ece", "avg_ece", "smooth_ece", "debiased_ece")
_FLOORED = ("ece", "max_ece", "avg_ece")
_PER_CLASS = ("ece", "floor", "signed_gap")  # columns of ClassTable


class CalibrationMetrics(Metric):
    """All numbers of :func:`hetcal.evaluate`, computed batch by batch.

    :meth:`compute` returns the most important numbers, and :meth:`evaluation` all of them. Up to rounding,
    they agree with those of :func:`hetcal.evaluate` for all rows together. Only the noise floors may differ:
    they are always computed as for :class:`hetcal.Batches`, by the faster method that :func:`hetcal.evaluate`
    uses for many rows.

    Parameters
    ----------
    num_classes : number of classes K
    n_bins : number of equal-width confidence bins
    from_probs : whether `preds` are probabilities instead of logits
        Logits may also be log-probabilities, such as those of :class:`hetcal.torch.CalibratedModel`.
    ignore_index : target of rows to leave out, such as unlabelled pixels
    per_class : whether :meth:`compute` also returns the entries with one value per class
    class_names : K strings for :meth:`evaluation`; by default the class numbers
    n_redraws, seed : number of redraws for the noise floors, and their seed
    validate_args : whether to check the values of every batch
        These checks make the host wait for the device. Shapes are always checked.
    **kwargs : options of :class:`torchmetrics.Metric`

    Examples
    --------
    >>> metric = CalibrationMetrics(num_classes=2)
    >>> for logits, labels in [([[2.0, 0.0], [2.0, 0.0]], [0, 1]), ([[0.0, 2.0]], [1])]:
    ...     metric.update(torch.tensor(logits), torch.tensor(labels))
    >>> values = metric.compute()
    >>> round(float(values["ece"]), 3), round(float(values["max_ece"]), 3)
    (0.214, 0.381)
    >>> metric.evaluation().classes.n
    array([2, 1])
    """

    is_differentiable = False
    higher_is_better = False
    full_state_update = False

    count: Tensor
    confidence: Tensor
    correct: Tensor
    grid: Tensor
    scores: Tensor
    prob_floor: Tensor

    def __init__(
        self,
        num_classes: int,
        *,
        n_bins: int = 15,
        from_probs: bool = False,
        ignore_index: int | None = None,
        per_class: bool = False,
        class_names: ArrayLike | None = None,
        n_redraws: int = 200,
        seed: int = 0,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_classes = check_integer(num_classes, "num_classes", minimum=2)
        self.from_probs = check_flag(from_probs, "from_probs")
        self.ignore_index = None if ignore_index is None else check_integer(ignore_index, "ignore_index")
        self.per_class = check_flag(per_class, "per_class")
        self.class_names = check_names(class_names, num_classes)
        self.n_redraws = check_integer(n_redraws, "n_redraws", minimum=1)
        self.seed = check_integer(seed, "seed", minimum=0)
        self.validate_args = check_flag(validate_args, "validate_args")
        self.bins = fine_bins_of(num_classes, check_integer(n_bins, "n_bins", minimum=1))
        sizes = dict.fromkeys(("count", "confidence", "correct"), num_classes * self.bins.size)
        for name, size in {**sizes, "grid": len(residual_grid()), "scores": 3}.items():
            self.add_state(name, torch.zeros(size, dtype=torch.float64), dist_reduce_fx="sum")
        highest = torch.tensor(1 / (2 * num_classes), dtype=torch.float64)
        self.add_state("prob_floor", highest, dist_reduce_fx="min")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add a batch.

        Parameters
        ----------
        preds : (n, K) logits, or probabilities if `from_probs` is True
            There may be further dimensions, as in (n, K, height, width) for images.
        target : (n,) true classes, or (n, ...) with the same further dimensions
        """
        rows, labels = check_metric_batch(
            preds,
            target,
            n_classes=self.num_classes,
            from_probs=self.from_probs,
            ignore_index=self.ignore_index,
            check_values=self.validate_args,
        )
        for part in chunk_rows(rows):
            z = rows[part].to(working_type(rows))
            cell, *values = _reduce(z, labels[part], self.bins, from_probs=self.from_probs)
            self._add(_Batch(cell.to(self.count.device), *(value.to(self.count) for value in values)))

    def compute(self) -> dict[str, Tensor]:
        """Metrics of all batches, and the means of their noise floors; all are nan if there are no rows.

        Returns
        -------
        dict
            Scalars ``accuracy``, ``nll``, ``brier``, ``ece``, ``max_ece``, ``avg_ece``, ``smooth_ece``,
            ``debiased_ece``, ``ece_floor``, ``max_ece_floor`` and ``avg_ece_floor``. With `per_class`, also
            ``class_ece``, ``class_floor`` and ``class_signed_gap`` of shape (K,).
        """
        totals = self._totals()
        names = (*_SCORES, *(f"{name}_floor" for name in _FLOORED))
        if totals.n:
            result = self._evaluate(totals)
            floors = {f"{name}_floor": result.floor[name] for name in _FLOORED}
            values: dict[str, Any] = {name: getattr(result, name) for name in _SCORES} | floors
            per_class = {f"class_{name}": getattr(result.classes, name) for name in _PER_CLASS}
        else:
            values = dict.fromkeys(names, np.nan)
            per_class = {f"class_{name}": np.full(self.num_classes, np.nan) for name in _PER_CLASS}
        if self.per_class:
            values |= per_class
        return {name: torch.as_tensor(np.asarray(value)).to(self.count) for name, value in values.items()}

    def evaluation(self) -> Evaluation:
        """Return the evaluation of all batches, with a table of the classes.

        If the program runs in several processes, each of them must call this method, as for :meth:`compute`.
        """
        with self.sync_context(dist_sync_fn=self.dist_sync_fn, should_sync=self.sync_on_compute):
            totals = self._totals()
        if not totals.n:
            raise ValueError("the metric must have seen at least one row, got none; call update first")
        return self._evaluate(totals)

    def _add(self, batch: _Batch) -> None:
        """Add the sums over a batch to the state."""
        confidence, correct, p_label = batch.confidence, batch.correct, batch.p_label
        self._add_to("count", batch.cell, torch.ones_like(confidence))
        self._add_to("confidence", batch.cell, confidence)
        self._add_to("correct", batch.cell, correct)
        # Divide every residual between the two nearest cells of the grid of smooth ECE, as
        # hetcal.metrics.scores.split_residuals does.
        position = confidence * (len(self.grid) - 2) + 0.5
        cell, residual = position.long(), confidence - correct
        upper = (position - cell) * residual
        self._add_to("grid", cell, residual - upper)
        self._add_to("grid", cell + 1, upper)
        log_score = -torch.where(p_label > 0, p_label, 1).log().sum()
        square_score = batch.brier.sum()
        n_zero = (p_label == 0).sum()
        self.scores = self.scores + torch.stack([log_score, square_score, n_zero])
        self.prob_floor = torch.minimum(self.prob_floor, (batch.least / 2).clamp(min=LEAST_FLOOR))

    def _add_to(self, name: str, cell: Tensor, values: Tensor) -> None:
        """Add values to the given cells of a state in place, since the state may be large."""
        state = getattr(self, name)
        if state.is_inference() and not torch.is_inference_mode_enabled():
            state = state.clone()  # a state that was reset in inference mode must not be changed outside it
        setattr(self, name, state.index_add_(0, cell, values))

    def _totals(self) -> Totals:
        count, confidence, correct, grid, scores = (
            state.cpu().numpy()
            for state in (self.count, self.confidence, self.correct, self.grid, self.scores)
        )
        shape = (self.num_classes, self.bins.size)
        tables = [table.reshape(shape) for table in (count, confidence, correct)]
        floor = float(self.prob_floor) if scores[2] else None
        return Totals(tables[0], tables[1], tables[2], grid, scores, self.bins, floor)

    def _evaluate(self, totals: Totals) -> Evaluation:
        rng = np.random.default_rng(self.seed)
        return evaluation_of_totals(totals, self.class_names, n_redraws=self.n_redraws, rng=rng)


class _Batch(NamedTuple):
    """Quantities of the rows of a batch, (n,) each, except for the scalar `least`."""

    cell: Tensor  # number of the pair of predicted class and fine bin, see hetcal.metrics.binning.FineBins
    confidence: Tensor
    correct: Tensor
    p_label: Tensor  # probability of the true class
    brier: Tensor  # Brier score
    least: Tensor  # smallest positive probability of the batch


def _reduce(rows: Tensor, labels: Tensor, bins: FineBins, *, from_probs: bool) -> _Batch:
    """Reduce validated rows (n, K) to the quantities of a batch, on the device of the rows."""
    p = rows if from_probs else rows.softmax(dim=1)
    # Not the argmax of p, because the softmax may round different logits to the same probability.
    predicted = rows.argmax(dim=1)
    confidence = p.gather(1, predicted[:, None])[:, 0].clamp(max=1)
    edges = bins.edges(np.dtype(np.float64 if p.dtype == torch.float64 else np.float32))
    index = torch.bucketize(confidence, torch.as_tensor(edges[1:-1], device=p.device))
    p_label = p.gather(1, labels[:, None])
    return _Batch(
        cell=predicted * bins.size + index,
        confidence=confidence,
        correct=predicted == labels,
        p_label=p_label[:, 0],
        brier=p.scatter(1, labels[:, None], 1 - p_label).square_().sum(dim=1),
        least=_least_positive(p),
    )


def _least_positive(p: Tensor) -> Tensor:
    least = p.amin()
    # On devices other than the CPU, the comparison with 0 would make the host wait.
    return least if p.is_cpu and least > 0 else torch.where(p > 0, p, 1).amin()
