"""A callback of Lightning that tracks calibration during training and fits a calibrator at the end."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import clone

from hetcal._extras import missing_package
from hetcal._validate import check_integer, check_metric_batch
from hetcal._warnings import emit
from hetcal.artefact import save
from hetcal.calibrators.base import Calibrator
from hetcal.metrics import Evaluation
from hetcal.torchmetrics import CalibrationMetrics

try:
    import torch
    from lightning.pytorch import Callback
except ImportError:
    try:
        from pytorch_lightning import Callback
    except ImportError as error:
        raise missing_package("hetcal.lightning needs Lightning", "lightning") from error

__all__ = ["CalibrationCallback"]

_LOGGED = ("nll", "ece", "max_ece", "avg_ece", "ece_floor", "max_ece_floor", "avg_ece_floor")
_FILE = "calibrator.json"
_VALIDATE_AGAIN = "call trainer.validate() with the weights that you want to calibrate"


class CalibrationCallback(Callback):  # type: ignore[misc]
    """Log calibration errors and their noise floors after every validation epoch, and fit a calibrator.

    The noise floor of a calibration error is the error that a calibrated model with the same confidences has
    by chance.

    The method ``validation_step`` of the module must return a dictionary with the logits. The dictionary must
    also contain the labels, unless the batch contains them. In a batch, the labels are the last element of a
    tuple or list, or the entry `labels_key` of a dictionary.

    Parameters
    ----------
    num_classes : number of classes K
    calibrator : unfitted calibrator of hetcal, optional
        At the end of ``trainer.fit`` and of ``trainer.validate``, a copy of it is fitted to the logits of the
        last validation epoch, and saved. For this, the logits of one epoch are kept in main memory. Without a
        calibrator, the memory does not grow with the number of rows.
    path : file for the fitted calibrator
        By default ``calibrator.json`` in the folder of the logger, or, if there is none, in
        ``trainer.default_root_dir``.
    prefix : start of the names of the logged metrics
        The prefix is followed by ``nll``, ``ece``, ``max_ece``, ``avg_ece``, ``ece_floor``,
        ``max_ece_floor`` or ``avg_ece_floor``.
    logits_key, labels_key : keys of the logits and the labels in the output of ``validation_step``
    dataloader_idx : index of the validation loader to use, if there are several
    from_probs : whether the entry `logits_key` contains probabilities instead of logits
    **options
        Arguments of :class:`hetcal.torchmetrics.CalibrationMetrics`, such as `n_bins`, `class_names` and
        `ignore_index`.

    Attributes
    ----------
    evaluation_ : hetcal.Evaluation of the last validation epoch, or None
    calibrator_ : fitted calibrator, or None
    path_ : file that contains the fitted calibrator, or None

    Notes
    -----
    A calibrator belongs to the weights that produced its logits. At the end of ``trainer.fit``, these are the
    last weights, not those of the best checkpoint. If training continued after the last validation epoch, a
    warning is emitted and no calibrator is fitted. To fit a calibrator for the best checkpoint, call
    ``trainer.validate(model, loader, ckpt_path="best")``.

    With several processes, the metrics and the calibrator use the rows of all processes. If the number of
    rows is not a multiple of the number of processes, Lightning repeats some rows, which then count twice.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        calibrator: Calibrator | None = None,
        path: str | os.PathLike[str] | None = None,
        prefix: str = "val_",
        logits_key: str = "logits",
        labels_key: str = "labels",
        dataloader_idx: int = 0,
        from_probs: bool = False,
        class_names: ArrayLike | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        if calibrator is not None and not isinstance(calibrator, Calibrator):
            raise TypeError(
                f"calibrator must be a calibrator of hetcal, got {calibrator!r:.60}; pass an object such as "
                "hetcal.AutoCalibrator()"
            )
        self.metric = CalibrationMetrics(
            num_classes, from_probs=from_probs, class_names=class_names, **options
        )
        self.calibrator, self.path, self.prefix = calibrator, path, prefix
        self.logits_key, self.labels_key = logits_key, labels_key
        self.dataloader_idx = check_integer(dataloader_idx, "dataloader_idx", minimum=0)
        self.class_names = class_names
        self.evaluation_: Evaluation | None = None
        self.calibrator_: Any = None
        self.path_: Path | None = None
        self._rows: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._step = -1  # training step at which the rows were collected

    def on_validation_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Discard the rows of earlier epochs."""
        # The metric needs float64. If the module is on MPS, which lacks float64, the metric is on the CPU.
        # Otherwise, its state must be on the device of the module, where several processes can exchange it.
        self.metric.to("cpu" if pl_module.device.type == "mps" else pl_module.device).reset()
        self._rows, self._step = [], int(trainer.global_step)

    def on_validation_batch_end(
        self,
        trainer: Any,
        pl_module: Any,  # noqa: ARG002
        outputs: Any,
        batch: Any,
        batch_idx: int,  # noqa: ARG002
        dataloader_idx: int = 0,
    ) -> None:
        """Add the rows of a batch."""
        if trainer.sanity_checking or dataloader_idx != self.dataloader_idx:
            return
        logits, labels = self._unpack(outputs, batch)
        logits = logits.detach()
        self.metric.update(logits, labels)
        if self.calibrator is not None:
            rows, targets = check_metric_batch(
                logits,
                labels,
                n_classes=self.metric.num_classes,
                from_probs=self.metric.from_probs,
                ignore_index=self.metric.ignore_index,
                check_values=False,  # the metric has checked them if its `validate_args` is true
            )
            wide = torch.promote_types(rows.dtype, torch.float32)
            self._rows.append((rows.to("cpu", wide), targets.cpu()))

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Log the metrics, and store them as `evaluation_`."""
        if trainer.sanity_checking:
            return
        values = self.metric.compute()
        if values["ece"].isnan():  # no rows
            return
        self.evaluation_ = self.metric.evaluation()
        pl_module.log_dict({f"{self.prefix}{name}": values[name].float() for name in _LOGGED})

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Fit the calibrator at the end of ``trainer.validate``."""
        if trainer.state.fn == "validate":
            self._fit(trainer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Fit the calibrator to the logits of the last validation epoch if no training step followed it."""
        if self.calibrator is not None and self._step != trainer.global_step:
            validated = f"logits of step {self._step:,}" if self._rows else "no logits"
            emit(
                "validation must follow the last training step to fit a calibrator, got "
                f"{validated} after {trainer.global_step:,} steps; {_VALIDATE_AGAIN}"
            )
            return
        self._fit(trainer)

    def _fit(self, trainer: Any) -> None:
        """Fit and save a copy of the calibrator, if there is one and rows have been collected.

        Nothing is done if the option ``fast_dev_run`` of the trainer is set.
        """
        if self.calibrator is None or trainer.fast_dev_run or not self._rows:
            return
        scores, labels = (torch.cat(parts).numpy() for parts in zip(*self._rows, strict=True))
        scores, labels = _gather(scores), _gather(labels)
        name = "probs" if self.metric.from_probs else "logits"
        inputs: dict[str, Any] = {name: scores}
        fitted = clone(self.calibrator).fit(labels=labels, class_names=self.class_names, **inputs)
        folder = Path(trainer.log_dir or trainer.default_root_dir)
        path = folder / _FILE if self.path is None else Path(self.path)
        if trainer.is_global_zero:
            path.parent.mkdir(parents=True, exist_ok=True)
            save(fitted, path)
        self.calibrator_, self.path_ = fitted, path

    def _unpack(self, outputs: Any, batch: Any) -> tuple[Any, Any]:
        """Logits and labels of a batch."""
        if not isinstance(outputs, Mapping) or self.logits_key not in outputs:
            got = f"the keys {', '.join(outputs)}" if isinstance(outputs, Mapping) else type(outputs).__name__
            raise ValueError(
                f"validation_step must return a dictionary with {self.logits_key!r}, got {got}; return "
                f'{{"{self.logits_key}": logits, "{self.labels_key}": labels}}'
            )
        if self.labels_key in outputs:
            return outputs[self.logits_key], outputs[self.labels_key]
        if isinstance(batch, Mapping) and self.labels_key in batch:
            return outputs[self.logits_key], batch[self.labels_key]
        if isinstance(batch, tuple | list) and len(batch) > 1:
            return outputs[self.logits_key], batch[-1]
        raise ValueError(
            f"validation_step must return the labels as {self.labels_key!r} unless the batch contains them "
            f"under this key or as its last element, got only the outputs {', '.join(outputs)}; add the "
            "labels to the returned dictionary"
        )


def _gather(rows: Any) -> Any:
    """Concatenate the rows of all processes."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return rows
    parts: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(parts, rows)
    return np.concatenate(parts)
