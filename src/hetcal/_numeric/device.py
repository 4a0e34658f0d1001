"""Fits on torch tensors, computed on the device that stores them.

Tensors in host memory are converted to numpy arrays instead. On a CUDA device with Triton installed, Triton
kernels compute the predicted classes, the softmax, and the derivatives of the loss with respect to inverse
temperatures. Most other passes are sequences of torch operations on chunks of rows. The solvers of
temperature and vector scaling run on the host, and each of their steps copies only small sums there. This
module imports torch only to process a tensor.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hetcal._numeric.families import Family
from hetcal._numeric.folds import RowContent, deal_folds
from hetcal._numeric.hashing import MIX, SALT, Keys, ordered_keys
from hetcal._numeric.passes import gap_sums
from hetcal._numeric.rows import MIN_EXPONENT, Rows, prepare
from hetcal._numeric.scalar_solver import Derivatives
from hetcal._numeric.source import (
    Assign,
    HeldoutLoss,
    LogitsFunction,
    MemorySource,
    NotInMemory,
    RowStatistic,
)
from hetcal._numeric.trust_region import EvaluateVector
from hetcal._typing import BoolArray, CodeArray, Float, IntArray

if TYPE_CHECKING:
    import torch

__all__ = [
    "TensorSource",
    "chunk_rows",
    "decide_tensor",
    "is_tensor",
    "on_device",
    "scaled_softmax_tensor",
    "working_type",
]

_CHUNK = 1 << 25  # logits that torch processes at once
_SAMPLE_ROWS = 2048  # smallest number of rows in the sample for the initial guess
_LOG2E = float(np.log2(np.e))


def is_tensor(values: Any) -> bool:
    """Whether `values` is a torch tensor, on any device."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(values, torch.Tensor)


def on_device(values: Any) -> bool:
    """Whether `values` is a torch tensor outside host memory."""
    return is_tensor(values) and values.device.type != "cpu"


class TensorSource:
    """Rows whose logits and labels are tensors on a device, divided into slices.

    Slices are disjoint sets of rows.

    Parameters
    ----------
    z : (n, K) logits
    y, top, guess : (n,) labels, row maxima and predicted classes
    weight : (n,) positive weights, or None
    groups : (n,) group of every row, in host memory, or None
    fold_groups : (n,) integers in host memory, or None
        In a cross-validation, rows with the same integer are in the same fold.
    ids : (n,) slice of every row; by default the predicted class
    n_slices : int; by default the number of classes
    """

    prefers_few_passes = False
    has_hessians = False
    label_model = None

    def __init__(
        self,
        z: torch.Tensor,
        y: torch.Tensor,
        top: torch.Tensor,
        guess: torch.Tensor,
        weight: torch.Tensor | None = None,
        *,
        groups: NDArray[Any] | None = None,
        fold_groups: IntArray | None = None,
        ids: torch.Tensor | None = None,
        n_slices: int | None = None,
    ) -> None:
        self.z, self.y, self.top, self.guess, self.weight = z, y, top, guess, weight
        self.groups, self.fold_groups = groups, fold_groups
        self.ids = guess if ids is None else ids
        self.n_slices = int(z.shape[1]) if n_slices is None else n_slices
        work = working_type(z)
        self.d_true = z.gather(1, y[:, None])[:, 0].to(work) - top.to(work)

    def __len__(self) -> int:
        return len(self.z)

    @property
    def n_classes(self) -> int:
        """Number of columns K."""
        return int(self.z.shape[1])

    def group_names(self) -> NDArray[Any] | None:
        """Sorted names of the rows' groups, or None if the rows have no groups."""
        return None if self.groups is None else np.unique(self.groups)

    def slice_by(self, assign: Assign, n_slices: int) -> TensorSource:
        """Return the same rows, divided into slices by `assign`."""
        import torch

        ids = np.asarray(assign(_to_host(self.guess), self.groups), np.int64)
        return TensorSource(
            *(self.z, self.y, self.top, self.guess, self.weight),
            groups=self.groups,
            fold_groups=self.fold_groups,
            ids=torch.as_tensor(ids, device=self.z.device),
            n_slices=n_slices,
        )

    def take(self, index: Any) -> TensorSource:
        """Return the rows at `index`, without their groups and fold groups."""
        z, y, top, guess, ids = (part[index] for part in (self.z, self.y, self.top, self.guess, self.ids))
        weight = None if self.weight is None else self.weight[index]
        return TensorSource(z, y, top, guess, weight, ids=ids, n_slices=self.n_slices)

    def transform(self, function: LogitsFunction) -> TensorSource:  # noqa: ARG002
        """Raise `NotInMemory`, since functions of logits are computed only in host memory."""
        raise self._not_in_memory("this calibrator")

    def draw_sample(self, n_parts: int, *, salt: int) -> MemorySource:  # noqa: ARG002
        """Raise `NotInMemory`, since the rows are on a device."""
        raise self._not_in_memory("this calibrator")

    def in_memory(self, purpose: str) -> MemorySource:
        """Raise `NotInMemory`, since the rows are on a device."""
        raise self._not_in_memory(purpose)

    def count_repeats(self, alpha: float) -> int:  # noqa: ARG002
        """Return 0, which means unknown: copies of rows are not searched for on a device."""
        return 0

    def gap_sums(self) -> tuple[Float, Float]:
        """Sums of the weights, and of weight · (confidence − correctness), by predicted class, (K,) each."""
        return gap_sums(self.sample_rows(len(self)))

    def sum_rows(self, statistic: RowStatistic) -> tuple[NDArray[Any], ...]:
        """Return the sums of a statistic over all rows, which are copied to host memory in chunks."""
        totals: list[Any] = []
        for part in chunk_rows(self.z):
            w = None if self.weight is None else np.asarray(_to_host(self.weight[part]), np.float64)
            rows = prepare(_to_host(self.z[part].to(self.d_true.dtype)), _to_host(self.y[part]), w)
            sums = MemorySource(rows).sum_rows(statistic)
            totals = list(sums) if not totals else [a + b for a, b in zip(totals, sums, strict=True)]
        return tuple(totals)

    def family_evaluator(self, family: Family, family_slice: IntArray) -> EvaluateVector:  # noqa: ARG002
        """Raise `NotInMemory`, since Hessians are computed only in host memory."""
        raise self._not_in_memory("this calibrator")

    def evaluate(self, alpha: Float, active: IntArray) -> Derivatives:
        """First three derivatives of the NLL of each slice in `active`.

        They are derivatives with respect to the inverse temperature of the slice. They are evaluated at
        `alpha` (S,), which contains an inverse temperature for every slice.
        """
        import torch

        visited = np.zeros(self.n_slices, bool)
        visited[active] = True
        moments = _moments(self, alpha, visited)
        moments[0] -= self.d_true
        if self.weight is not None:
            moments *= self.weight
        sums = torch.zeros(3, self.n_slices, dtype=torch.float64, device=self.z.device)
        sums.index_add_(1, self.ids, moments.double())
        first, second, third = _to_host(sums)[:, active]
        return first, second, third

    def counts(self) -> IntArray:
        """Number of rows in every slice, (S,)."""
        return self._counts

    def class_counts(self) -> IntArray:
        """Number of rows predicted as each class, (K,)."""
        return _to_host(self.guess.bincount(minlength=self.n_classes))

    def weights(self) -> tuple[float, float]:
        """Sum of the rows' weights, and the smallest weight."""
        if self.weight is None:
            return float(len(self.z)), 1.0
        return float(self.weight.double().sum()), float(self.weight.min())

    def slice_weights(self) -> Float:
        """Sum of the weights in every slice, (S,)."""
        w = None if self.weight is None else self.weight.double()
        return np.asarray(_to_host(self.ids.bincount(w, self.n_slices)), np.float64)

    def is_separable(self) -> BoolArray:
        """Whether each slice is separable, (S,); see `Source.is_separable`."""
        decreasing = ~self._has_finite_optimum & (self._counts > 0)
        if not decreasing.any():
            return decreasing
        import torch

        index = torch.as_tensor(decreasing, device=self.z.device)[self.ids].nonzero()[:, 0]
        uneven = self.z[index].amin(dim=1) < self.top[index]
        has_uneven = _to_host(self.ids[index][uneven].bincount(minlength=self.n_slices)) > 0
        return np.asarray(decreasing & has_uneven)

    def has_finite_optimum(self) -> BoolArray:
        """Whether each slice has a row whose label does not have the largest logit, (S,); see `Source`."""
        return self._has_finite_optimum

    def sample(self) -> TensorSource | None:
        """Return an evenly spaced sample of the rows for an initial guess, or None if there are few rows."""
        step = len(self.z) // _SAMPLE_ROWS
        return self.take(slice(None, None, step)) if step > 3 else None

    def split(self, n_folds: int) -> Iterator[tuple[TensorSource, TensorSource]]:
        """Yield the training and test rows of every fold, unless one of the two is empty."""
        import torch

        fold = torch.as_tensor(deal_folds(self, n_folds), device=self.z.device)
        for f in range(n_folds):
            test = (fold == f).nonzero()[:, 0]
            if 0 < len(test) < len(fold):
                yield self.take((fold != f).nonzero()[:, 0]), self.take(test)

    def gathered(self) -> tuple[Rows, CodeArray]:
        """Copy all rows to host memory and return them with their slices; only for few rows."""
        return self.sample_rows(len(self)), _to_host(self.ids)

    def row_keys(self) -> Keys:
        """Hash of every row's logits, (n,), computed on the device."""
        return _to_host(_row_keys(self)).view(np.uint64)

    def row_content(self) -> RowContent:
        """Return the values by which rows with equal keys are sorted."""
        weight = None if self.weight is None else np.asarray(_to_host(self.weight), np.float64)
        d_true = np.asarray(_to_host(self.d_true), np.float64)
        work = self.d_true.dtype
        columns = lambda index: ordered_keys(_to_host(self.z[index].to(work)))  # noqa: E731
        return RowContent(_to_host(self.guess), d_true, _to_host(self.y), weight, columns)

    def heldout_loss(self, alphas: Float) -> HeldoutLoss:
        """NLL summed over the rows, for each of G choices of the inverse temperatures, `alphas` (G, S)."""
        import torch

        total = HeldoutLoss.zero(len(alphas))
        for part in chunk_rows(self.z):
            d, d_true = _below_top(self, part), self.d_true[part]
            row_alphas = torch.as_tensor(alphas, dtype=d.dtype, device=d.device)[:, self.ids[part]]
            loss = torch.stack([(a[:, None] * d).logsumexp(1) - a * d_true for a in row_alphas]).double()
            w = torch.ones_like(loss[0]) if self.weight is None else self.weight[part].double()
            loss *= w
            total += HeldoutLoss(_to_host(loss.sum(1)), _to_host(loss @ loss.T), len(w), float(w.sum()))
        return total

    def sample_rows(self, n_rows: int) -> Rows:
        """Return evenly spaced rows in host memory.

        The sample has between one and two times `n_rows` rows, or all rows if there are fewer than `n_rows`.
        """
        step = max(1, len(self.z) // n_rows)
        w = None if self.weight is None else np.asarray(_to_host(self.weight[::step]), np.float64)
        return prepare(_to_host(self.z[::step].to(self.d_true.dtype)), _to_host(self.y[::step]), w)

    def vector_gradient(self, theta: Float) -> tuple[float, Float]:
        """Summed NLL of ``softmax(scale ⊙ z + bias)`` and its gradient (2K,) in θ = (scale, bias)."""
        import torch

        work = self.d_true.dtype
        scale, bias = torch.as_tensor(theta, dtype=work, device=self.z.device).view(2, -1)
        loss, gradient = 0.0, torch.zeros(2, len(scale), dtype=torch.float64, device=self.z.device)
        for part in chunk_rows(self.z):
            z, y = self.z[part].to(work), self.y[part]
            log_p = (z * scale + bias).log_softmax(dim=1)
            w = torch.ones_like(log_p[:, 0]) if self.weight is None else self.weight[part]
            loss -= float((w * log_p.gather(1, y[:, None])[:, 0]).sum(dtype=torch.float64))
            p = log_p.exp_() * w[:, None]
            p[torch.arange(len(y), device=y.device), y] -= w
            gradient[0] += (p * z).sum(dim=0, dtype=torch.float64)
            gradient[1] += p.sum(dim=0, dtype=torch.float64)
        return loss, np.asarray(_to_host(gradient)).ravel()

    def _not_in_memory(self, purpose: str) -> NotInMemory:
        return NotInMemory(
            f"logits must be an array for {purpose}, got a tensor on {self.z.device}; pass logits.cpu()"
        )

    @cached_property
    def _counts(self) -> IntArray:
        return _to_host(self.ids.bincount(minlength=self.n_slices))

    @cached_property
    def _has_finite_optimum(self) -> BoolArray:
        return _to_host(self.ids[self.d_true < 0].bincount(minlength=self.n_slices)) > 0


def scaled_softmax_tensor(z: Any, alpha: Any, top: Any, guess: Any) -> Any:
    """``softmax(α z)`` with one inverse temperature α per predicted class, or one for all rows.

    `top` and `guess` are the maximum and the predicted class of every row. The predicted class stays the
    argmax, even if rounding causes a tie.
    """
    import torch

    work = working_type(z)
    a = torch.as_tensor(np.atleast_1d(alpha), dtype=work, device=z.device)
    if _has_triton(z):
        from hetcal._numeric.triton_kernels import scaled_softmax

        p, tied = scaled_softmax(z, top, guess, a)
    else:
        d = z.to(work) - top.to(work)[:, None]
        p = torch.softmax(d.mul_((a[guess] if len(a) > 1 else a)[:, None]), dim=1)
        tied = p.argmax(dim=1) != guess
    index = tied.nonzero()[:, 0]
    if len(index):  # increase the probability of the predicted class by one unit in the last place
        best = p[index].amax(dim=1)
        p[index, guess[index]] = torch.nextafter(best, torch.full_like(best, 2.0))
    return p


def _moments(source: TensorSource, alpha: Float, visited: BoolArray) -> Any:
    """E_p[d], Var_p[d] and E_p[(d − E_p[d])³] of every row, with d = z − max z and p = softmax(αd).

    Returns (3, n), with zeros for rows of slices for which `visited` is False.
    """
    import torch

    device = source.z.device
    a = torch.as_tensor(alpha, dtype=source.d_true.dtype, device=device)
    active = torch.as_tensor(visited, device=device)
    if _has_triton(source.z):
        from hetcal._numeric.triton_kernels import slopes

        return slopes(source.z, source.top, source.ids, a, active)
    out = source.d_true.new_zeros(3, len(source.z))
    all_rows = bool(visited.all())
    for part in chunk_rows(source.z):
        rows = part if all_rows else active[source.ids[part]].nonzero()[:, 0] + part.start
        out[:, rows] = _chunk_moments(_below_top(source, rows), a[source.ids[rows]])
    return out


def _chunk_moments(d: Any, a: Any) -> Any:
    import torch

    d = d.maximum(MIN_EXPONENT / (a * _LOG2E)[:, None])  # avoids underflow; clipped classes are negligible
    e = (d * a[:, None]).exp()
    total = e.sum(1)
    means = []
    for _ in range(3):
        e = e * d
        means.append(e.sum(1) / total)
    first, second, third = means
    skew = third - 3 * first * second + 2 * first**3
    return torch.stack([first, (second - first**2).clamp(min=0), skew])


def _below_top(source: TensorSource, rows: Any) -> Any:
    work = source.d_true.dtype
    return source.z[rows].to(work) - source.top[rows].to(work)[:, None]


def _row_keys(source: TensorSource) -> Any:
    """Hash of every row as in :func:`hetcal._numeric.hashing.row_keys`, but as int64, (n,).

    When a product overflows, int64 keeps the same bits as uint64.
    """
    import torch

    z, out = source.z, torch.empty(len(source.z), dtype=torch.int64, device=source.z.device)
    for part in chunk_rows(z):
        below = (_below_top(source, part) + 0).contiguous()
        if below.dtype == torch.float32:
            x = below.view(torch.int32).to(torch.int64) & 0xFFFFFFFF
        else:
            x = below.view(torch.int64)
        (shift, factor), _ = MIX
        x = x * _signed(SALT)
        out[part] = ((x ^ (x >> shift & (1 << 64 - shift) - 1)) * _signed(factor)).sum(dim=1)
    return out


def _signed(number: int) -> int:
    """Signed 64-bit integer with the same bits as an unsigned one."""
    return number - (1 << 64) if number >= 1 << 63 else number


def chunk_rows(z: Any) -> Iterator[slice]:
    """Yield ranges of rows that are small enough for torch to process at once, as Python slices."""
    step = max(1, _CHUNK // int(z.shape[1]))
    for start in range(0, len(z), step):
        yield slice(start, min(start + step, len(z)))


def _has_triton(z: Any) -> bool:
    if z.device.type != "cuda":
        return False
    try:
        import triton  # type: ignore[import-not-found, unused-ignore]  # noqa: F401
    except ImportError:
        return False
    return True


def decide_tensor(z: Any) -> tuple[Any, Any, bool]:
    """Maximum of every row, the first column with that maximum, and whether all logits are finite.

    The last result is also False if all logits are finite, but they or their sums overflow during the check.
    """
    import torch

    if _has_triton(z):
        from hetcal._numeric.triton_kernels import decide

        return decide(z)
    top, guess = z.new_empty(len(z)), torch.empty(len(z), dtype=torch.long, device=z.device)
    for part in chunk_rows(z):
        top[part] = z[part].amax(dim=1)
        guess[part] = (z[part] == top[part, None]).to(torch.uint8).argmax(dim=1)
    return top, guess, bool(torch.isfinite(z.sum(dtype=working_type(z))))


def working_type(z: Any) -> Any:
    """Type to compute in: float64 for float64 logits, and float32 for logits of any other type."""
    import torch

    return torch.float64 if z.dtype == torch.float64 else torch.float32


def _to_host(tensor: Any) -> NDArray[Any]:
    return np.asarray(tensor.cpu().numpy())
