"""Conversion of scores of images (B, K, d1, d2, …) to rows (n, K), one row per position (pixel).

Rows whose label is to be ignored are removed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetcal._coerce import as_array, is_text, real_array
from hetcal._numeric.blocks import is_source
from hetcal._numeric.device import is_tensor
from hetcal._typing import BoolArray, IntArray
from hetcal._validate import check_integer, is_soft, one_of

__all__ = ["FlatRows", "flatten_images", "is_image"]

_MIN_AXES = 3  # arrays with at least this many axes are images


@dataclass(frozen=True, eq=False)
class FlatRows:
    """Arguments of a public function, with images converted to one row per position.

    Attributes
    ----------
    logits, probs : (n, K) scores, one of which is None
    labels : (n,) hard labels or (n, K) soft labels, or None
    per_row : further arguments by name, each an array (n,), a scalar or None
    image : (n,) number of each row's image, or None if there are no images
    shape : shape (B, d1, d2, …) of the images without the classes; empty if there are no images
    """

    logits: Any
    probs: Any
    labels: Any
    per_row: Mapping[str, Any]
    image: IntArray | None = None
    shape: tuple[int, ...] = field(default=())

    def fold_groups(self) -> IntArray | None:
        """Image numbers (n,) as fold groups, which keep the positions of an image in one fold.

        The result is None if there are no images, if they have only one position each, or if all rows with a
        positive weight belong to one image.
        """
        if self.image is None or math.prod(self.shape[1:]) == 1:
            return None
        used, weight = self.image, self.per_row.get("sample_weight")
        if weight is not None and np.ndim(weight) == 1:
            used = used[real_array(weight, "sample_weight") != 0]
        return self.image if used.size and used[0] != used[-1] else None

    def restore(self, rows: Any) -> Any:
        """Convert rows (n, K), one per position, to images (B, K, d1, d2, …) of the same type.

        A tuple of several such arrays or tensors gives a tuple of images.
        """
        if isinstance(rows, tuple):
            return tuple(map(self.restore, rows))
        images = rows.reshape(*self.shape, rows.shape[1])
        if is_tensor(images):
            return images.movedim(-1, 1).contiguous()
        return np.ascontiguousarray(np.moveaxis(images, -1, 1))


def is_image(scores: Any) -> bool:
    """Whether an array or tensor has axes after the class axis."""
    return getattr(scores, "ndim", 0) >= _MIN_AXES and not is_source(scores)


def flatten_images(
    logits: Any,
    probs: Any,
    labels: Any = None,
    ignore_index: int | None = None,
    *,
    n_classes: int | None = None,
    confidences: bool = False,
    **per_row: Any,
) -> FlatRows:
    """Turn images into rows, and drop the rows with the label `ignore_index`.

    Rows (n, K) are returned unchanged if `ignore_index` is None. The values are validated later.

    Parameters
    ----------
    logits, probs : scores (n, K) or (B, K, d1, d2, …), one of which is None
        If the class axis of `probs` has length 1, it contains the probabilities of class 1.
    labels : (n,) or (B, d1, d2, …) hard labels, soft labels in the shape of the scores, or None
    ignore_index : label of the rows to drop, or None
    n_classes : expected K of images, or None
    confidences : whether `probs` are confidences in predicted classes, which have no class axis
    per_row : further arguments with one entry per row, per position or per image, such as ``groups``

    Notes
    -----
    Arrays and tensors of images are copied at most once. Tensors of scores and labels stay on their device.
    """
    has_images = not confidences and (is_image(logits) or is_image(probs))
    if ignore_index is None and not has_images:
        return FlatRows(logits, probs, labels, per_row)
    scores, name = one_of(logits, probs)
    if ignore_index is not None:
        check_integer(ignore_index, "ignore_index")
        if is_source(scores):
            raise ValueError(
                f"ignore_index must be left out for rows in batches, got {ignore_index}; drop the rows with "
                "this label when you create the batches"
            )
    if has_images:
        return _from_images(scores, name, labels, ignore_index, n_classes, per_row)
    return _from_rows(scores, name, labels, ignore_index, per_row)


def _from_rows(
    scores: Any, name: str, labels: Any, ignore_index: int | None, per_row: Mapping[str, Any]
) -> FlatRows:
    """Drop the rows (n, K) with the label `ignore_index`."""
    if labels is None:
        return _flat_rows(name, scores, None, per_row)
    n_rows = int(np.shape(scores)[0]) if np.ndim(scores) else 0
    y = labels if is_tensor(labels) else as_array(labels, "labels")
    if y.ndim == 2 and not is_soft(y):
        y = y.reshape(-1)
    if y.ndim != 2 and tuple(y.shape) != (n_rows,):
        return _flat_rows(name, scores, y, per_row)  # labels of this shape are refused later
    keep = _is_used(y, ignore_index)
    if keep.all():
        return _flat_rows(name, scores, y, per_row)
    used = {key: _rows_of(value, key, (n_rows,), keep) for key, value in per_row.items()}
    return _flat_rows(name, _take_rows(scores, keep), _take_rows(y, keep), used)


def _from_images(
    scores: Any,
    name: str,
    labels: Any,
    ignore_index: int | None,
    n_classes: int | None,
    per_row: Mapping[str, Any],
) -> FlatRows:
    """One row per position whose label is not `ignore_index`."""
    z = scores if is_tensor(scores) else as_array(scores, name)
    shape = (int(z.shape[0]), *map(int, z.shape[2:]))
    _check_class_axis(z, name, n_classes)
    y = keep = None
    if labels is not None:
        y = _flat_labels(labels, z, shape, name)
        keep = None if ignore_index is None else _is_used(y, ignore_index)
        if keep is not None and keep.all():
            keep = None
    image = np.repeat(np.arange(shape[0]), math.prod(shape[1:]))
    used = {key: _rows_of(value, key, shape, keep) for key, value in per_row.items()}
    if keep is not None:
        y, image = _take_rows(y, keep), image[keep]
    return _flat_rows(name, _rows_of_scores(z, shape, keep), y, used, image, shape)


def _flat_rows(
    name: str,
    scores: Any,
    labels: Any,
    per_row: Mapping[str, Any],
    image: IntArray | None = None,
    shape: tuple[int, ...] = (),
) -> FlatRows:
    logits, probs = (scores, None) if name == "logits" else (None, scores)
    return FlatRows(logits, probs, labels, per_row, image, shape)


def _check_class_axis(z: Any, name: str, n_classes: int | None) -> None:
    shape = tuple(map(int, z.shape))
    if shape[1] == 1 and name == "logits":
        raise ValueError(
            f"logits must have at least 2 classes on axis 1, got shape {shape}; for the log-odds s of "
            "class 1 pass 0 and s, stacked along axis 1"
        )
    if n_classes is not None and shape[1] != n_classes and not (shape[1] == 1 and n_classes == 2):
        raise ValueError(
            f"{name} must have {n_classes} classes on axis 1, as in fit, got shape {shape}; "
            f"{_move_axis(name, z) if shape[-1] == n_classes else 'pass one channel per class'}"
        )


def _move_axis(name: str, z: Any) -> str:
    move = f"{name}.movedim(-1, 1)" if is_tensor(z) else f"np.moveaxis({name}, -1, 1)"
    return f"if the classes are the last axis, pass {move}"


def _flat_labels(labels: Any, z: Any, shape: tuple[int, ...], name: str) -> Any:
    """Labels (n,), or soft labels (n, K), as an array or tensor."""
    y = labels if is_tensor(labels) else as_array(labels, "labels")
    if tuple(y.shape) == tuple(z.shape):
        return _rows_of_scores(y, shape, None)
    if tuple(y.shape) != shape:
        remedy = "pass the class of every position"
        if tuple(y.shape) == tuple(z.shape[:-1]):
            remedy = _move_axis(name, z)
        elif tuple(y.shape) == shape[:1]:
            remedy += f", or reshape {name} to (n, K) if there is one label per row"
        raise ValueError(
            f"labels must have shape {shape}, that of {name} without axis 1 (the classes), got shape "
            f"{tuple(y.shape)}; {remedy}"
        )
    return y.reshape(-1)


def _is_used(y: Any, ignore_index: int | None) -> BoolArray:
    """Whether the label of each row differs from `ignore_index`, (n,)."""
    if is_soft(y):
        raise ValueError(
            f"ignore_index must be left out for soft labels, got {ignore_index}; drop the unlabelled rows"
        )
    if is_tensor(y):  # integers are widened, because in int8 an ignore_index of 255 would become -1
        y = y.detach()
        used = np.asarray(((y if y.is_floating_point() else y.long()) != ignore_index).cpu().numpy())
    elif is_text(y):
        raise ValueError(
            f"ignore_index must be left out for labels that are names, got {ignore_index}; drop the rows "
            "without a class"
        )
    else:
        used = np.asarray(y != ignore_index, dtype=bool)
    if used.size and not used.any():
        raise ValueError(
            f"labels must contain a class, got only ignore_index={ignore_index}; check that only unlabelled "
            "rows have this label"
        )
    return used


def _rows_of(values: Any, name: str, shape: tuple[int, ...], keep: BoolArray | None) -> Any:
    """Entries of an argument for every row that is used, (n,); None and scalars are returned unchanged."""
    if values is None:
        return None
    array = as_array(values, name)
    if array.ndim == 0:
        return values
    if array.shape == shape:
        rows: NDArray[Any] = array.reshape(-1)
    elif array.shape == shape[:1]:
        rows = np.repeat(array, math.prod(shape[1:]))
    elif len(shape) == 1:
        raise ValueError(
            f"{name} must have one entry per row ({shape[0]}), got shape {array.shape}; pass the entries of "
            "all rows, including those with the label ignore_index"
        )
    else:
        raise ValueError(
            f"{name} must have shape {shape} or ({shape[0]},), got shape {array.shape}; pass one entry per "
            "position or per image"
        )
    return rows if keep is None else rows[keep]


def _rows_of_scores(z: Any, shape: tuple[int, ...], keep: BoolArray | None) -> Any:
    """Scores (n, K) of the used positions of images (B, K, d1, d2, …)."""
    rows = z.detach().movedim(1, -1) if is_tensor(z) else np.moveaxis(z, 1, -1)
    if keep is not None:
        return _take_rows(rows, keep.reshape(shape))
    return rows.reshape(math.prod(shape), int(z.shape[1]))


def _take_rows(values: Any, keep: BoolArray) -> Any:
    """Rows for which `keep` is true. Arrays, tensors and tables keep their type; lists become arrays."""
    if is_tensor(values):
        import torch

        return values[torch.as_tensor(keep, device=values.device)]
    if isinstance(values, np.ndarray):
        return values[keep]
    index = np.flatnonzero(keep)
    if hasattr(values, "iloc"):  # pandas
        return values.iloc[index]
    if hasattr(values, "take"):  # PyArrow
        return values.take(index)
    return values[index] if hasattr(values, "columns") else as_array(values, "logits")[keep]
