"""The base class of all calibrators.

The public `fit` and `predict_proba` validate their input once. `_fit` and `_predict` receive validated input.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.utils.validation import check_is_fitted, has_fit_parameter

from hetcal._binary_probs import two_columns
from hetcal._coerce import as_array
from hetcal._columns import (
    are_numbers,
    class_names_of,
    column_names,
    column_order,
    counted_names,
    labels_by_number,
    refuse_reordered,
)
from hetcal._images import flatten_images, is_image
from hetcal._numeric.blocks import BlockSource, RowSource, is_source, with_normalised_weights
from hetcal._numeric.device import is_tensor, on_device
from hetcal._numeric.fingerprint import fingerprint, share_fitted
from hetcal._numeric.label_models import LabelModel, NoisyLabels, SoftLabels
from hetcal._numeric.probabilities import LEAST_FLOOR, log_probs, normalise_weights, probability_floor
from hetcal._numeric.rows import prepare
from hetcal._numeric.source import MemorySource, Source
from hetcal._typing import FloatArray, IntArray
from hetcal._validate import (
    NAME_COLUMNS,
    check_fold_groups,
    check_groups,
    check_labels,
    check_logits,
    check_names,
    check_probs,
    check_soft_labels,
    check_tensor_logits,
    check_tensors,
    check_transition,
    check_weights,
    is_soft,
    one_of,
)
from hetcal._warnings import warn_thin_data
from hetcal.batches import Batches, is_mapped
from hetcal.export.maps import External, Map, group_names, logits_from
from hetcal.partition import Slices

__all__ = [
    "REGISTRY",
    "Calibrator",
    "FitInput",
    "NextStep",
    "fit_and_record",
    "fit_step",
    "groups_of",
    "log_for_next_step",
    "map_of_step",
    "needs_memory",
    "predict_step",
    "type_name",
]

#: Calibrator classes by `type_name`; `hetcal.load` looks up the class of a saved calibrator here.
REGISTRY: dict[str, type[Calibrator]] = {}

_LARGE = 1 << 25  # memory-mapped logits with at least this many elements may be read in batches
# The fingerprint of a tensor uses a sample of at least this many rows, or all rows if there are fewer.
_FINGERPRINT_ROWS = 1 << 12
_BATCH_REMEDY = "put the logarithms of the probabilities in the batches, with zeros raised to a small number"
_NO_PROBS = "probs must be an array, got {}; pass batches of hetcal.to_logits(probs, floor=...) as logits"


class Calibrator(BaseEstimator):  # type: ignore[misc]
    """A map from logits to calibrated probabilities.

    A subclass implements ``_fit(source)``, which receives validated rows, and ``_map()``, which describes the
    fitted map from logits to probabilities. The property `preserves_decision` says whether this map preserves
    the argmax. Prediction, JSON files, PyTorch modules and ONNX graphs need nothing else.

    Attributes
    ----------
    n_features_in_ : int, number of classes K
    class_names_ : list of K strings, or None
        Class names in the order of the columns in `fit`. If later input has the same names in another order,
        its columns are matched by name. None if the classes had no names, or the names 0, 1, … in order.
    prob_floor_ : float, or None
        Smaller probabilities are raised to this value before their logarithms are taken. None if the
        calibrator was fitted on logits.
    fitted_on_ : dict, a fingerprint of the rows that `fit` received
        `hetcal.evaluate` uses it to warn if a calibrator is evaluated on rows that it was fitted on.
    """

    #: Constructor arguments that a saved file leaves out.
    _unsaved: ClassVar[tuple[str, ...]] = ()
    #: Number of classes that a fit requires; None if any number of classes is possible.
    _required_classes: ClassVar[int | None] = None

    def __init_subclass__(cls, *, register: bool = True, **options: Any) -> None:
        super().__init_subclass__(**options)
        if register:
            REGISTRY[type_name(cls)] = cls

    @property
    def preserves_decision(self) -> bool:
        """Whether the predicted class of every row is preserved; False unless a subclass overrides this."""
        return False

    def fit(
        self,
        logits: Any = None,
        labels: ArrayLike | None = None,
        *,
        probs: Any = None,
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        class_names: ArrayLike | None = None,
        fold_groups: ArrayLike | None = None,
        transition: ArrayLike | None = None,
        ignore_index: int | None = None,
    ) -> Self:
        """Fit to labelled rows, or to the positions of labelled images.

        Parameters
        ----------
        logits : (n, K) unnormalised scores as an array, data frame or tensor, or rows in batches
            An array or tensor (B, K, d1, d2, ...) contains B images with the classes on axis 1, as in
            PyTorch. Every position of an image is a row. Rows in batches (:class:`hetcal.Batches`) include
            their labels, weights and groups, which are then not passed as arguments.
        labels : (n,) integers 0..K-1, or class names if `class_names` or the columns provide them
            The labels of images have the shape (B, d1, d2, ...).
            Soft labels are an array (n, K) with the probabilities of the true classes, or with counts, such
            as the votes of several annotators, which are divided by their sum.
        probs : (n, K) probabilities, instead of `logits`
            An array (n,) or a single column contains the probabilities of class 1. If the only column of a
            data frame is called ``prob_<class>``, ``<class>`` is the name of class 1.

            The logarithms of the probabilities are the logits. Before the logarithms are taken, smaller
            probabilities than `prob_floor_`, such as zeros, are raised to this floor. It is half of the
            smallest positive probability, but at least 1.2e-38 and at most ``1/(2K)``.
        sample_weight : (n,) importance of every row; multiplying all weights by a constant has no effect
            Weights are scaled to sum to the effective sample size ``(Σw)² / Σw²``. To count a row several
            times, repeat it. For images, `sample_weight`, `groups` and `fold_groups` have one entry per
            position (B, d1, d2, ...) or per image (B,).
        groups : (n,) integers or strings, to calibrate by group instead of by predicted class
        class_names : K strings in the order of the columns; by default the names of a data frame's columns
        fold_groups : (n,) integers or strings
            Rows with the same fold group (such as those of one patient, or copies of a row) stay in the same
            fold if the fit uses cross-validation. By default, if there are several images, the positions of
            each image stay in the same fold.
        transition : (K, K) matrix T, or noise rates as one number or (K,) numbers
            For labels that may be wrong. Entry [i, j] is the probability that a label of class i is recorded
            as j. A noise rate is the probability that a label of the class was replaced with a uniformly
            random one of all K classes.

            A fit that minimises the NLL then uses the NLL of the observed labels, ``−Σ_i log (p_i T)_{y_i}``,
            so that p_i are calibrated probabilities of the true classes. Fits without an NLL, such as
            isotonic regression, replace the one-hot vector of a label y with the row ``T⁻¹[y]``, whose
            expectation is the one-hot vector of the true class. :class:`TemperatureScaling` and
            :class:`PlattScaling` combine both methods; see the notes.
        ignore_index : label of rows that are left out, such as 255 for unlabelled pixels

        Notes
        -----
        Standard errors of parameters treat rows as independent. Neighbouring positions of an image are not
        independent, so the standard errors of a fit to images are too small.

        With `transition`, there are two estimates of the parameters of :class:`TemperatureScaling` and
        :class:`PlattScaling`. The maximum of the likelihood favours classes with little noise, because their
        labels contain more information. The other estimate minimises the NLL in which the row ``T⁻¹[y]``
        replaces the one-hot vector of the label y. It favours no class, but has a larger variance. The fit is
        a weighted mean of the two estimates (of log α for :class:`TemperatureScaling`). The weight of the
        maximum of the likelihood is ``min(1, 2 V / d²)``, where d² is the squared distance between the
        estimates and V is the estimated variance of their difference. If one of the estimates does not exist,
        the other one is used. All of this applies to the NLL, the default loss.
        """
        rows = flatten_images(
            *(logits, probs, labels, ignore_index),
            sample_weight=sample_weight,
            groups=groups,
            fold_groups=fold_groups,
        )
        arguments = dict(rows.per_row)
        if fold_groups is None:
            arguments["fold_groups"] = rows.fold_groups()
        fit_input = _validate_fit(
            self,
            rows.logits,
            rows.labels,
            rows.probs,
            class_names=class_names,
            transition=transition,
            **arguments,
        )
        self._fit(fit_input.source)
        self._record(fit_input)
        return self

    def predict_proba(
        self,
        logits: Any = None,
        *,
        probs: Any = None,
        groups: ArrayLike | None = None,
        class_names: ArrayLike | None = None,
    ) -> Any:
        """Calibrated probabilities (n, K), with columns in the order of the input.

        Parameters
        ----------
        logits : (n, K) scores as an array, data frame or tensor, or rows in batches
            The result is a tensor for a tensor, batches for batches, and otherwise an array. For images
            (B, K, d1, d2, ...), the result has the same shape.
        probs : (n, K) probabilities, instead of `logits`
            An array (n,) or a single column contains the probabilities of class 1; the result has the columns
            of class 0 and class 1.
        groups : (n,) group of every row, if `fit` was called with groups
            For images, one entry per position (B, d1, d2, ...) or per image (B,).
        class_names : K strings, the names of the columns if their order differs from that in `fit`
        """
        return self._respond(self._predict, logits, probs, groups, class_names)

    def _record(self, fit_input: FitInput) -> None:
        """Set the attributes that describe the input of `fit`, such as the class names."""
        self.n_features_in_ = fit_input.source.n_classes
        self.class_names_, self.prob_floor_ = fit_input.class_names, fit_input.prob_floor
        self.fitted_on_ = fit_input.fingerprint
        self.__dict__.pop("feature_names_in_", None)
        if fit_input.columns is not None and fit_input.class_names is not None:
            self.feature_names_in_ = np.array(fit_input.columns, dtype=object)

    def _fit(self, source: Source) -> None:
        """Fit the parameters to validated rows; subclasses implement this method."""
        raise NotImplementedError

    def _map(self) -> Map:
        """Return the fitted map from logits to probabilities.

        A subclass may define `_predict` instead of this method. The map then calls `_predict` and cannot be
        exported.
        """
        if type(self)._predict is Calibrator._predict:
            raise NotImplementedError(
                f"{type(self).__name__} must define _map() or _predict(), got neither; define one of them"
            )
        return _external(self, self._predict)

    @classmethod
    def _states_map(cls) -> bool:
        """Whether `_map` describes the predictions.

        The result is False if only the base class `Calibrator` defines `_map`. It is also False if a class
        inherits `_map` but overrides `_predict` or `predict_proba`, because `_map` then describes other
        predictions.
        """
        for base in cls.__mro__:
            if "_map" in vars(base):
                return base is not Calibrator
            if "_predict" in vars(base) or "predict_proba" in vars(base):
                return False
        return False

    @classmethod
    def _examples(cls) -> list[Self]:
        """Return unfitted instances with different options, for tests that run with every calibrator."""
        return [cls()]

    def _predict(self, z: FloatArray, groups: ArrayLike | None) -> Any:
        """Calibrated probabilities (n, K) from validated logits (n, K) and groups."""
        return self._map().predict(z, groups)

    def _predict_probs(self, p: FloatArray, groups: ArrayLike | None) -> FloatArray:
        """Calibrated probabilities (n, K) from validated probabilities (n, K) and groups."""
        return np.asarray(self._predict(log_probs(p, getattr(self, "prob_floor_", None)), groups))

    def _export_floor(self) -> float:
        """Value to which exported models raise smaller input probabilities."""
        floor = getattr(self, "prob_floor_", None)
        return LEAST_FLOOR if floor is None else float(floor)

    def _needs_memory(self) -> bool:
        """Whether a fit needs all rows in memory."""
        return False

    def _fits_on_device(self) -> bool:
        """Whether `fit` can process a tensor on its device instead of copying it to main memory."""
        return False

    def _respond(
        self,
        predict: Callable[[FloatArray, ArrayLike | None], Any],
        logits: Any,
        probs: Any,
        groups: ArrayLike | None,
        class_names: ArrayLike | None,
    ) -> Any:
        """Validate the input, and return predictions with the columns in the order of the input.

        `predict` computes the predictions for an array, from its validated logits (n, K) and groups. Batches,
        and tensors that are processed on their device, get the probabilities of `_predict` instead. The
        result is a tensor for a tensor, batches for batches, and otherwise what `predict` returns.
        """
        check_is_fitted(self)
        if is_image(logits) or is_image(probs):
            images = flatten_images(logits, probs, n_classes=self.n_features_in_, groups=groups)
            groups = images.per_row["groups"]
            return images.restore(self._respond(predict, images.logits, images.probs, groups, class_names))
        if self.n_features_in_ == 2:
            probs = two_columns(probs, fit_names=getattr(self, "class_names_", None))
        scores, name = one_of(logits, probs)
        names = _names_of(scores, class_names)[0]
        order = column_order(getattr(self, "class_names_", None), names, name)
        if is_source(scores):
            if probs is not None:
                raise TypeError(_NO_PROBS.format(type(scores).__name__))
            check_logits(scores.first().rows.z, probs_remedy=_BATCH_REMEDY)
            return scores.transform(_Prediction(self, order))
        if is_tensor(scores) and probs is None:
            p = self._predict_on_device(scores, groups, order)
            if p is not None:
                return p
        values = as_array(scores, name) if is_tensor(scores) else scores
        if probs is None:
            z = check_logits(values, n_classes=self.n_features_in_)
        else:
            z = _check_probs(values, self.n_features_in_)
            if predict == self._predict:
                predict = self._predict_probs
            else:
                z = log_probs(z, getattr(self, "prob_floor_", None))
        g = None if groups is None else check_groups(groups, n_rows=len(z))
        result = predict(z if order is None else np.ascontiguousarray(z[:, order]), g)
        if order is not None:
            inverse = np.argsort(order)
            result = tuple(p[:, inverse] for p in result) if isinstance(result, tuple) else result[:, inverse]
        if is_tensor(scores):
            import torch

            return torch.from_numpy(np.ascontiguousarray(result)).to(scores.device)
        return result

    def _fitted_share(self, logits: Any, probs: Any, labels: Any, class_names: Any) -> float:
        """Estimate the overlap of these rows with those of `fit`, as a fraction of the smaller set.

        The estimate is based on the fingerprint of the rows of `fit`. For rows in batches, only the first
        batch is compared.
        """
        scores, _ = one_of(logits, probs)
        if getattr(self, "fitted_on_", None) is None:
            return 0.0
        names = _names_of(scores, class_names)[0]
        if is_source(scores):
            first = scores.first().rows
            z, y = first.z, first.y
        else:
            values = as_array(scores, "logits")
            z = check_logits(values) if probs is None else log_probs(check_probs(values), self.prob_floor_)
            y = check_labels(labels, n_rows=len(z), n_classes=z.shape[1], class_names=names)
        order = column_order(self.class_names_, names)
        if order is not None:
            z, y = z[:, order], np.argsort(order)[y]
        return share_fitted(self.fitted_on_, prepare(z, y, None))

    def _predict_on_device(self, logits: Any, groups: ArrayLike | None, order: IntArray | None) -> Any:
        """Probabilities computed on the device of the logits; None if that is not possible."""
        if not on_device(logits) or groups is not None or order is not None or not self._states_map():
            return None
        if logits.ndim != 2 or logits.shape[1] != self.n_features_in_:
            return None
        calibration = self._map()
        if not calibration.runs_on_device:
            return None
        return calibration.predict_on_device(*check_tensor_logits(logits))


@dataclass(frozen=True)
class _Prediction:
    """Function that returns the calibrated probabilities of a block of logits.

    `order` contains the position in the block of each column of the calibrator. It is None if the columns
    have the same order. The columns of the probabilities are in the order of the block.
    """

    model: Calibrator
    order: IntArray | None = None

    def __call__(self, logits: FloatArray, groups: Any) -> FloatArray:
        by_group = groups if groups_of(self.model) is not None else None
        if self.order is None:
            return np.asarray(self.model._predict(logits, by_group))
        p = self.model._predict(np.ascontiguousarray(logits[:, self.order]), by_group)
        return np.asarray(p[:, np.argsort(self.order)])


@dataclass(frozen=True)
class FitInput:
    """Validated input of a fit: the rows, and what the calibrator records about them."""

    source: Source
    class_names: list[str] | None
    fingerprint: dict[str, Any]
    prob_floor: float | None = None
    columns: list[str] | None = None


def _validate_fit(
    model: Calibrator,
    logits: Any,
    labels: Any,
    probs: Any,
    sample_weight: Any,
    groups: Any,
    class_names: Any,
    fold_groups: Any,
    transition: Any,
) -> FitInput:
    soft = is_soft(labels)
    probs = two_columns(probs, None if soft else labels, class_names)
    scores, _ = one_of(logits, probs)
    blocks = None
    if transition is not None and is_source(scores):
        raise ValueError(
            f"transition must be left out for rows in batches, got both transition and "
            f"{type(scores).__name__}; fit on arrays to use transition"
        )
    in_memory = soft or transition is not None
    if probs is None and fold_groups is None and not in_memory:
        blocks = _as_blocks(scores, labels, sample_weight, groups, class_names)
    if blocks is not None or is_source(scores):
        # Blocks that `_as_blocks` has created already contain the names.
        names = class_names if is_source(scores) else None
        return _validate_blocks(model, blocks or scores, names, probs, fold_groups)
    if probs is None and on_device(scores) and model._fits_on_device() and not in_memory:
        return _validate_tensors(scores, labels, sample_weight, groups, class_names, fold_groups)
    floor = None
    if probs is None:
        z = check_logits(scores)
    else:
        p = check_probs(scores)
        floor = probability_floor(p)
        z = log_probs(p, floor)
    names, columns = _names_of(scores, class_names)
    y, label_model = _validate_labels(labels, transition, z.shape, names, columns, class_names, soft=soft)
    w = check_weights(sample_weight, n_rows=len(z))
    positive = slice(None) if w is None else np.flatnonzero(w)
    warn_thin_data(y[positive], z.shape[1])
    rows = prepare(z, y, None if w is None else normalise_weights(w), label_model)
    g = None if groups is None else check_groups(groups, n_rows=len(z))[positive]
    source = MemorySource(rows, g, check_fold_groups(fold_groups, len(z), positive))
    return FitInput(source, _unless_counted(names), fingerprint(rows), floor, columns)


def _validate_labels(
    labels: Any,
    transition: Any,
    shape: tuple[int, int],
    names: list[str] | None,
    columns: list[str] | None,
    class_names: Any,
    *,
    soft: bool,
) -> tuple[IntArray, LabelModel | None]:
    """Return the labels (n,), and a `LabelModel` if they are soft or noisy, otherwise None.

    For soft labels, the first result contains the most likely class of each row.
    """
    n_rows, n_classes = shape
    matrix = check_transition(transition, n_classes, names)
    if not soft:
        y = check_labels(
            labels_by_number(labels, columns, class_names),
            n_rows=n_rows,
            n_classes=n_classes,
            class_names=names,
            names_remedy=NAME_COLUMNS,
        )
        return y, None if matrix is None else NoisyLabels(y, matrix)
    if matrix is not None:
        raise ValueError(
            f"transition must be left out for soft labels, got both (labels of shape {np.shape(labels)}); "
            "pass one observed class per row as labels, or leave out transition"
        )
    q = check_soft_labels(labels, n_rows=n_rows, n_classes=n_classes)
    own_names = column_names(labels)
    if own_names is not None:
        order = column_order(names, class_names_of(own_names), "labels")
        q = q if order is None else q[:, order]
    return q.argmax(axis=1), SoftLabels(q)


def _validate_blocks(
    model: Calibrator, blocks: RowSource, class_names: Any, probs: Any, fold_groups: Any
) -> FitInput:
    kind = type(blocks).__name__
    if probs is not None:
        raise TypeError(_NO_PROBS.format(kind))
    if fold_groups is not None:
        raise ValueError(
            f"fold_groups must be left out for rows in batches, got both fold_groups and {kind}; "
            "fit on arrays to use fold_groups"
        )
    if model._needs_memory():
        raise TypeError(
            f"logits must be an array in memory for {type(model).__name__}, which needs all rows at once, "
            f"got rows that are read in batches ({kind}); fit on an array of sampled rows, or use another "
            "calibrator, such as ClassWiseTemperatureScaling()"
        )
    if class_names is not None and are_numbers(class_names):
        raise ValueError(
            f"class_names must be strings for rows in batches, got {class_names!r}; convert them to strings, "
            "and pass labels as positions of columns"
        )
    first = blocks.first()
    check_logits(first.rows.z, probs_remedy=_BATCH_REMEDY)
    names = _names_of(blocks, class_names)[0]
    source = BlockSource(with_normalised_weights(blocks))
    return FitInput(source, _unless_counted(names), fingerprint(first.rows, complete=False))


def _validate_tensors(
    logits: Any, labels: Any, sample_weight: Any, groups: Any, class_names: Any, fold_groups: Any
) -> FitInput:
    names = None
    if class_names is not None:  # labels may then be class names, even numeric ones
        n_classes = int(logits.shape[-1])
        column_labels = check_names(class_names, n_classes)
        names = class_names_of(column_labels)
        labels = check_labels(
            labels_by_number(labels, None, class_names),
            n_rows=len(logits),
            n_classes=n_classes,
            class_names=column_labels,
        )
    source = check_tensors(logits, labels, sample_weight, groups, fold_groups)
    warn_thin_data(source.y, source.n_classes)
    sample = source.sample_rows(_FINGERPRINT_ROWS)
    return FitInput(source, _unless_counted(names), fingerprint(sample, complete=False))


def _as_blocks(
    logits: Any, labels: Any, sample_weight: Any, groups: Any, class_names: Any
) -> RowSource | None:
    """Return a source that reads the rows in blocks, or None if they are processed all at once."""
    if is_source(logits):
        separate = {"labels": labels, "sample_weight": sample_weight, "groups": groups}
        extra = [name for name, value in separate.items() if value is not None]
        if extra:
            raise ValueError(
                f"{extra[0]} must be left out for rows in batches, got a separate argument; "
                "make it part of the batches when you create them"
            )
        blocks: RowSource = logits
        return blocks
    if is_mapped(logits) and logits.ndim == 2 and logits.size >= _LARGE and labels is not None:
        return Batches(logits, labels, sample_weight=sample_weight, groups=groups, class_names=class_names)
    return None


def _names_of(scores: Any, class_names: Any) -> tuple[list[str] | None, list[str] | None]:
    """Return the class names (from `class_names`, or else from the columns) and the names of the columns.

    Each of the two results is None if the names are unknown. The second is also None for rows in batches.
    """
    if is_source(scores):
        columns, n_classes = None, int(scores.n_classes)
        own_names = None if scores.class_names is None else check_names(scores.class_names, n_classes)
    else:
        columns = column_names(scores)
        own_names = None if columns is None else class_names_of(columns)
        n_classes = 0 if class_names is None else int(np.atleast_1d(as_array(scores, "logits")).shape[-1])
    if class_names is None:
        return own_names, columns
    names = class_names_of(check_names(class_names, n_classes))
    if own_names is not None:
        refuse_reordered(own_names, names)
    return names, columns


def _unless_counted(names: list[str] | None) -> list[str] | None:
    """Return the names, or None if they are only the positions 0, 1, … of the columns."""
    return None if names is None or names == counted_names(len(names)) else names


def _check_probs(probs: Any, n_classes: int) -> FloatArray:
    p = check_probs(probs)
    if p.shape[1] != n_classes:
        raise ValueError(
            f"probs must have {n_classes} columns, one per class as in fit, got {p.shape[1]}; "
            "pass a column for each class of the fit"
        )
    return p


# -- Parts of composite calibrators ---------------------------------------------------------------


def fit_and_record(step: Any, fit_input: FitInput) -> Any:
    """Return a fitted copy of a calibrator; hetcal's own calibrators also record the input, as `fit` does."""
    fitted = fit_step(step, fit_input.source)
    if _is_own(fitted):
        fitted._record(fit_input)
    return fitted


def fit_step(step: Any, source: Source) -> Any:
    """Return a fitted copy of a calibrator, which may be any object with ``fit`` and ``predict_proba``."""
    fitted = clone(step) if hasattr(step, "get_params") else copy.deepcopy(step)
    if _is_own(fitted):
        fitted._fit(source)
        fitted.n_features_in_ = source.n_classes
        return fitted
    if source.label_model is not None:
        raise TypeError(
            f"transition and soft labels need calibrators of hetcal, got {type(step).__name__}; "
            "use a calibrator of hetcal in its place"
        )
    memory = source.in_memory(type(step).__name__)
    rows = memory.rows
    weighted = rows.given_weight is not None and not np.all(rows.given_weight == 1)
    options: dict[str, Any] = {"sample_weight": rows.weight} if weighted else {}
    if memory.groups is not None and has_fit_parameter(fitted, "groups"):
        options["groups"] = memory.groups
    fitted.fit(rows.z, rows.y.astype(np.int64), **options)
    return fitted


def predict_step(step: Any, z: FloatArray, groups: ArrayLike | None) -> FloatArray:
    """Probabilities (n, K) of a fitted calibrator.

    A calibrator of another library receives `groups` only if its `fit` accepts them.
    """
    if _is_own(step):
        return np.asarray(step._predict(z, groups))
    options = {"groups": groups} if groups is not None and has_fit_parameter(step, "groups") else {}
    return _all_columns(step, np.asarray(step.predict_proba(z, **options)), z.shape[1])


def _all_columns(step: Any, p: FloatArray, n_classes: int) -> FloatArray:
    """Return the probabilities of a classifier of another library in K columns, in the order 0..K-1.

    If the classifier has seen only some of the classes, the other classes get the probability 0.
    """
    classes = getattr(step, "classes_", None)
    if (
        classes is not None
        and p.ndim == 2
        and len(classes) == p.shape[1]
        and np.asarray(classes).dtype.kind in "iu"
    ):
        columns = np.asarray(classes, np.int64)
        if p.shape[1] < n_classes or not np.array_equal(columns, np.arange(n_classes)):
            wide = np.zeros((len(p), n_classes), p.dtype)
            wide[:, columns] = p
            return wide
    if p.ndim != 2 or p.shape[1] != n_classes:
        raise ValueError(
            f"{type(step).__name__}.predict_proba must return probabilities (n, {n_classes}), "
            f"got shape {p.shape}; return one column per class"
        )
    return p


def needs_memory(step: Any) -> bool:
    """Whether a fit of this calibrator needs all rows in memory; True for calibrators of other libraries."""
    return not _is_own(step) or bool(step._needs_memory())


@dataclass(frozen=True)
class NextStep:
    """Function that turns the logits for the fitted calibrator `step` into those for the next calibrator."""

    step: Any

    def __call__(self, z: FloatArray, groups: ArrayLike | None) -> FloatArray:
        """Logarithms (n, K) of the probabilities of `step`, with the same argmax."""
        return log_for_next_step(predict_step(self.step, z, groups))


def log_for_next_step(p: FloatArray) -> FloatArray:
    """Logarithms (n, K) of probabilities, with the same argmax; zeros are first raised to a tiny number."""
    return logits_from(p, p.argmax(axis=1))


def map_of_step(step: Any) -> Map:
    """Map of a fitted calibrator, which may be any object with ``predict_proba``."""
    if _is_own(step) and step._states_map():
        return cast("Map", step._map())
    return _external(step, lambda z, groups: predict_step(step, z, groups))


def _external(step: Any, predict: Callable[[FloatArray, ArrayLike | None], Any]) -> External:
    name = f"{type(step).__module__}.{type(step).__name__}"
    groups = getattr(step, "groups_", None)
    slices = None if groups is None else Slices(len(groups), groups=np.asarray(groups))
    return External(name, predict, bool(getattr(step, "preserves_decision", False)), slices)


def type_name(cls: type[Calibrator]) -> str:
    """Name of a class in saved files; the names of classes outside hetcal include the module."""
    is_own = cls.__module__.startswith("hetcal.")
    return cls.__name__ if is_own else f"{cls.__module__}.{cls.__qualname__}"


def _is_own(step: Any) -> bool:
    """Whether this is a `Calibrator` that does not override `fit`, so that validation can be skipped."""
    return isinstance(step, Calibrator) and type(step).fit is Calibrator.fit


def groups_of(model: Any) -> NDArray[Any] | None:
    """Return the names of the groups that a fitted calibrator treats separately; None if it has no groups."""
    return group_names(map_of_step(model))
