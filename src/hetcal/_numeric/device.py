"""Torch tensors: told apart without importing torch, and fitted on the device where they lie.

Tensors in the computer's own memory share it with numpy and take its ways. On any other device a pass over
the logits is a Triton kernel where there is Triton, and chunks of torch operations otherwise; small sums go
to the host, where the solver runs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hetcal._coerce import as_array, name_number
from hetcal._numeric.folds import RowContent, are_few, deal_by_keys, deal_groups, deal_rows
from hetcal._numeric.hashing import MIX, SALT, ordered_keys
from hetcal._numeric.problems import Heldout
from hetcal._numeric.rows import Rows, prepare
from hetcal._numeric.scalar_solver import Derivatives
from hetcal._typing import Float, IntArray
from hetcal._validate import check_logits

if TYPE_CHECKING:
    import torch

__all__ = ["TensorProblem", "is_tensor", "on_device", "prepare_tensors", "scaled_softmax_tensor"]


_CHUNK = 1 << 25  # elements that torch works on together
_SAMPLE = 2048  # rows behind the first guess
_LOG2E = float(np.log2(np.e))
_LEAST = -120.0  # exponents of two below count as this


def is_tensor(values: Any) -> bool:
    """Whether this is a torch tensor, on whatever device."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(values, torch.Tensor)


def on_device(values: Any) -> bool:
    """Whether this is a tensor that numpy cannot see."""
    return is_tensor(values) and values.device.type != "cpu"


def prepare_tensors(logits: Any, labels: Any, sample_weight: Any) -> TensorProblem:
    """Check tensors on their device and gather what the passes need; slices are the predicted classes."""
    z = logits.detach()
    if z.ndim != 2 or z.shape[1] < 2 or not len(z):
        raise ValueError(
            "logits must be two-dimensional (n, K) with rows and at least 2 columns, "
            f"got shape {tuple(z.shape)}"
        )
    if z.is_complex():
        raise ValueError(f"logits must be real, got {z.dtype}: Complex data not supported")
    z = (z if z.is_floating_point() else z.double()).contiguous()
    top, guess, finite = _decide(z)
    if not finite:
        _refuse_non_finite(z)
    _refuse_probs(z)
    y = _labels(labels, z)
    w = _weights(sample_weight, z)
    problem = TensorProblem(z, y, top, guess, guess, z.shape[1], w)
    if w is not None and not bool((w > 0).all()):
        kept = w > 0
        problem = problem.take(kept)
        problem.kept = _host(kept)
    problem.n_given = len(z)
    return problem


class TensorProblem:
    """Inverse temperatures of slices of a tensor: what `TemperatureProblem` is for arrays."""

    def __init__(
        self,
        z: torch.Tensor,
        y: torch.Tensor,
        top: torch.Tensor,
        guess: torch.Tensor,
        ids: torch.Tensor,
        n_slices: int,
        weight: torch.Tensor | None,
    ) -> None:
        self.z, self.y, self.top, self.guess = z, y, top, guess
        self.ids, self.n_slices, self.weight = ids, n_slices, weight
        self.n_given = len(z)  # rows before those of weight zero were left out
        self.kept: NDArray[Any] | None = None  # which of them stayed
        self.fold_groups: IntArray | None = None  # rows of the same number stay together in a fold
        work = _working(z)
        self.d_true = z.gather(1, y[:, None])[:, 0].to(work) - top.to(work)

    def sliced(self, ids: Any, n_slices: int) -> TensorProblem:
        """Return the same rows in other slices."""
        import torch

        there = torch.as_tensor(np.asarray(ids, np.int64), device=self.z.device)
        made = TensorProblem(self.z, self.y, self.top, self.guess, there, n_slices, self.weight)
        made.fold_groups = self.fold_groups
        return made

    def take(self, index: Any) -> TensorProblem:
        """Return the problem on some of the rows."""
        w = None if self.weight is None else self.weight[index]
        parts = (part[index] for part in (self.z, self.y, self.top, self.guess, self.ids))
        z, y, top, guess, ids = parts
        return TensorProblem(z, y, top, guess, ids, self.n_slices, w)

    def evaluate(self, alpha: Float, active: IntArray) -> Derivatives:
        """Derivatives of the losses of the slices `active`; one pass over their rows."""
        import torch

        wanted = np.zeros(self.n_slices, bool)
        wanted[active] = True
        moments = _moments(self, alpha, wanted)
        moments[0] -= self.d_true
        if self.weight is not None:
            moments *= self.weight
        sums = torch.zeros(3, self.n_slices, dtype=torch.float64, device=self.z.device)
        sums.index_add_(1, self.ids, moments.double())
        found = sums.cpu().numpy()
        return found[0, active], found[1, active], found[2, active]

    def counts(self) -> IntArray:
        """Rows in every slice."""
        return self._counts

    def class_counts(self, n_classes: int) -> IntArray:
        """Rows predicted as each class."""
        return _host(self.guess.bincount(minlength=n_classes))

    def weights(self) -> tuple[float, float]:
        """Sum of the rows' weights, and the least of them."""
        if self.weight is None:
            return float(len(self.z)), 1.0
        return float(self.weight.double().sum()), float(self.weight.min())

    def slice_weights(self) -> Float:
        """Sum of the weights in every slice."""
        w = None if self.weight is None else self.weight.double()
        return np.asarray(_host(self.ids.bincount(w, self.n_slices)), np.float64)

    def endless(self) -> NDArray[np.bool_]:
        """Slices whose loss falls for ever as α grows: no label below its top, and some row not flat."""
        falling = ~self._held & (self._counts > 0)
        if not falling.any():
            return falling
        import torch

        index = torch.as_tensor(falling, device=self.z.device)[self.ids].nonzero()[:, 0]
        uneven = self.z[index].amin(dim=1) < self.top[index]
        return np.asarray(falling & (_host(self.ids[index][uneven].bincount(minlength=self.n_slices)) > 0))

    def held(self) -> NDArray[np.bool_]:
        """Slices with a label below the top of its row."""
        return self._held

    def sample(self) -> TensorProblem | None:
        """Return every so many-th row for a first guess, or None where there are few."""
        step = len(self.z) // _SAMPLE
        return self.take(slice(None, None, step)) if step > 3 else None

    def split(self, n_folds: int) -> Iterator[tuple[TensorProblem, TensorProblem]]:
        """Rows outside and inside of every fold, by the same rule as in memory."""
        import torch

        fold = torch.as_tensor(self._deal(n_folds), device=self.z.device)
        for f in range(n_folds):
            inside = (fold == f).nonzero()[:, 0]
            if 0 < len(inside) < len(fold):
                yield self.take((fold != f).nonzero()[:, 0]), self.take(inside)

    def _deal(self, n_folds: int) -> IntArray:
        """Fold of every row: from all logits where they are few, from a hash made on the device otherwise."""
        if are_few(*self.z.shape):
            ids = np.asarray(_host(self.ids))
            return deal_rows(self.some_rows(len(self.z)), ids, self.n_slices, n_folds, self.fold_groups)
        keys = np.asarray(_host(_row_keys(self))).view(np.uint64)
        if self.fold_groups is not None:
            return deal_groups(keys, self.fold_groups, n_folds)
        weight = None if self.weight is None else np.asarray(_host(self.weight), np.float64)
        d_true = np.asarray(_host(self.d_true), np.float64)
        work = self.d_true.dtype
        columns = lambda index: ordered_keys(_host(self.z[index].to(work)))  # noqa: E731
        content = RowContent(_host(self.guess), d_true, _host(self.y), weight, columns)
        return deal_by_keys(keys, content, n_folds)

    def heldout(self, alphas: Float) -> Heldout:
        """NLL of the rows under each line of `alphas` (G, S)."""
        import torch

        total = Heldout(np.zeros(len(alphas)), np.zeros((len(alphas),) * 2), 0, 0)
        for part in _parts(self.z):
            d, d_true = _below_top(self, part), self.d_true[part]
            lines = torch.as_tensor(alphas, dtype=d.dtype, device=d.device)[:, self.ids[part]]
            loss = torch.stack([(a[:, None] * d).logsumexp(1) - a * d_true for a in lines]).double()
            w = torch.ones_like(loss[0]) if self.weight is None else self.weight[part].double()
            loss *= w
            total += Heldout(_host(loss.sum(1)), _host(loss @ loss.T), len(w), float(w.sum()))
        return total

    def some_rows(self, most: int) -> Rows:
        """Return about `most` rows, every so many-th, in the computer's own memory."""
        step = max(1, len(self.z) // most)
        w = None if self.weight is None else np.asarray(_host(self.weight[::step]), np.float64)
        return prepare(_host(self.z[::step].to(self.d_true.dtype)), _host(self.y[::step]), w)

    def vector_sums(self, theta: Float) -> tuple[float, Float]:
        """NLL of ``softmax(scale ⊙ z + bias)`` and its gradient (2K,), summed over the rows."""
        import torch

        work = self.d_true.dtype
        scale, bias = torch.as_tensor(theta, dtype=work, device=self.z.device).view(2, -1)
        loss, gradient = 0.0, torch.zeros(2, len(scale), dtype=torch.float64, device=self.z.device)
        for part in _parts(self.z):
            z, y = self.z[part].to(work), self.y[part]
            log_p = (z * scale + bias).log_softmax(dim=1)
            w = torch.ones_like(log_p[:, 0]) if self.weight is None else self.weight[part]
            loss -= float((w * log_p.gather(1, y[:, None])[:, 0]).sum(dtype=torch.float64))
            p = log_p.exp_() * w[:, None]
            p[torch.arange(len(y), device=y.device), y] -= w
            gradient[0] += (p * z).sum(dim=0, dtype=torch.float64)
            gradient[1] += p.sum(dim=0, dtype=torch.float64)
        return loss, np.asarray(_host(gradient)).ravel()

    @cached_property
    def _counts(self) -> IntArray:
        return _host(self.ids.bincount(minlength=self.n_slices))

    @cached_property
    def _held(self) -> NDArray[np.bool_]:
        return _host(self.ids[self.d_true < 0].bincount(minlength=self.n_slices)) > 0


def scaled_softmax_tensor(logits: Any, alpha: Any) -> Any:
    """``softmax(α_k z)`` with k the predicted class, or the one α for all; the decision is kept."""
    import torch

    z = logits.detach()
    z = z.to(_working(z))
    guess = z.argmax(dim=1)
    a = torch.as_tensor(np.atleast_1d(alpha), dtype=z.dtype, device=z.device)
    a = a[guess] if len(a) > 1 else a
    p = torch.softmax((z - z.amax(dim=1, keepdim=True)) * a[:, None], dim=1)
    lost = (p.argmax(dim=1) != guess).nonzero()[:, 0]
    if len(lost):  # rounding made a tie: one unit in the last place settles it
        best = p[lost].amax(dim=1)
        p[lost, guess[lost]] = torch.nextafter(best, torch.full_like(best, 2.0))
    return p


def _moments(problem: TensorProblem, alpha: Float, wanted: NDArray[np.bool_]) -> Any:
    """E_p[d], Var_p[d] and E_p[(d − E_p[d])³] of every row, (3, n); zero where a slice is not wanted."""
    import torch

    device = problem.z.device
    a = torch.as_tensor(alpha, dtype=problem.d_true.dtype, device=device)
    active = torch.as_tensor(wanted, device=device)
    if _has_triton(problem.z):
        from hetcal._numeric.triton_kernels import slopes

        return slopes(problem.z, problem.top, problem.ids, a, active)
    out = problem.d_true.new_zeros(3, len(problem.z))
    everything = bool(wanted.all())
    for part in _parts(problem.z):
        rows = part if everything else active[problem.ids[part]].nonzero()[:, 0] + part.start
        out[:, rows] = _chunk_moments(_below_top(problem, rows), a[problem.ids[rows]])
    return out


def _chunk_moments(d: Any, a: Any) -> Any:
    d = d.maximum(_LEAST / (a * _LOG2E)[:, None])  # far classes count for nothing, and stay finite
    e = (d * a[:, None]).exp()
    total = e.sum(1)
    means = []
    for _ in range(3):
        e = e * d
        means.append(e.sum(1) / total)
    first, second, third = means
    skew = third - 3 * first * second + 2 * first**3
    import torch

    return torch.stack([first, (second - first**2).clamp(min=0), skew])


def _below_top(problem: TensorProblem, rows: Any) -> Any:
    work = problem.d_true.dtype
    return problem.z[rows].to(work) - problem.top[rows].to(work)[:, None]


def _row_keys(problem: TensorProblem) -> Any:
    """:func:`hetcal._numeric.hashing.row_keys` on the device; integers have a sign here and wrap alike."""
    import torch

    z, out = problem.z, torch.empty(len(problem.z), dtype=torch.int64, device=problem.z.device)
    for part in _parts(z):
        below = (_below_top(problem, part) + 0).contiguous()
        if below.dtype == torch.float32:
            x = below.view(torch.int32).to(torch.int64) & 0xFFFFFFFF
        else:
            x = below.view(torch.int64)
        (shift, factor), _ = MIX
        x = x * _signed(SALT)
        out[part] = ((x ^ (x >> shift & (1 << 64 - shift) - 1)) * _signed(factor)).sum(dim=1)
    return out


def _signed(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number


def _parts(z: Any) -> Iterator[slice]:
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


def _decide(z: Any) -> tuple[Any, Any, bool]:
    """Largest entry of every row, the first column that has it, and whether all entries are surely finite."""
    import torch

    if _has_triton(z):
        from hetcal._numeric.triton_kernels import decide

        return decide(z)
    top, guess = z.new_empty(len(z)), torch.empty(len(z), dtype=torch.long, device=z.device)
    for part in _parts(z):
        top[part] = z[part].amax(dim=1)
        guess[part] = (z[part] == top[part, None]).to(torch.uint8).argmax(dim=1)
    return top, guess, bool(torch.isfinite(z.sum(dtype=_working(z))))


def _working(z: Any) -> Any:
    """Type to compute in: float64 stays, everything shorter becomes float32."""
    import torch

    return torch.float64 if z.dtype == torch.float64 else torch.float32


def _refuse_non_finite(z: Any) -> None:
    """Raise an error that names the first row with NaN or infinity."""
    import torch

    for part in _parts(z):
        bad = (~torch.isfinite(z[part])).any(dim=1)
        if bool(bad.any()):
            row = int(bad.to(torch.int8).argmax())
            values = z[part][row]
            what = name_number(float(values[~torch.isfinite(values)][0]))
            raise ValueError(
                f"logits must be finite, got {what} at row {part.start + row}; "
                "drop the row or fix the model that produced it"
            )


def _refuse_probs(z: Any) -> None:
    """Raise the error of `check_logits` where the first rows, and all others, look like probabilities."""
    try:
        check_logits(z[:64].double().cpu().numpy().astype(np.float32))
    except ValueError:
        inside = float(z.amin()) >= 0 and float(z.amax()) <= 1
        if inside and bool(((z.sum(dim=1) - 1).abs() <= 1e-3).all()):
            raise


def _labels(labels: Any, z: Any) -> Any:
    import torch

    if labels is None:
        raise ValueError("labels must be given, got None")
    y = labels.detach() if is_tensor(labels) else torch.as_tensor(as_array(labels, "labels"))
    if y.ndim != 1 or len(y) != len(z):
        raise ValueError(
            f"labels must have one entry per row of logits ({len(z)}), got shape {tuple(y.shape)}"
        )
    if y.is_floating_point():
        bad = ~torch.isfinite(y) | (y != y.floor())
        if bool(bad.any()):
            row = int(bad.to(torch.int8).argmax())
            what = name_number(float(y[row]))
            raise ValueError(
                f"labels must be integers 0..{z.shape[1] - 1}, got {what} at row {row}; "
                "drop the row or correct its label"
            )
    y = y.to(z.device).long()
    if int(y.min()) < 0 or int(y.max()) >= z.shape[1]:
        row = int(((y < 0) | (y >= z.shape[1])).to(torch.int8).argmax())
        raise ValueError(f"labels must lie in 0..{z.shape[1] - 1}, got {int(y[row])} at row {row}")
    return y


def _weights(sample_weight: Any, z: Any) -> Any:
    import torch

    if sample_weight is None:
        return None
    given = sample_weight if is_tensor(sample_weight) else as_array(sample_weight, "sample_weight")
    w = torch.as_tensor(given).detach()
    if w.ndim != 1 or len(w) != len(z):
        raise ValueError(f"sample_weight must have one entry per row ({len(z)}), got shape {tuple(w.shape)}")
    w = w.to(z.device, torch.float64)
    bad = ~(torch.isfinite(w) & (w >= 0))
    if bool(bad.any()):
        row = int(bad.to(torch.int8).argmax())
        raise ValueError(
            f"sample_weight must be finite and not negative, got {name_number(float(w[row]))} at row {row}; "
            "drop the row or correct its weight"
        )
    if not bool(w.any()):
        raise ValueError(
            "sample_weight must have a positive entry, got only zeros; leave it out to weigh all rows alike"
        )
    w = w / w.max()
    return (w * (w.sum() / (w @ w))).to(_working(z))  # as normalise_weights does


def _host(tensor: Any) -> NDArray[Any]:
    return np.asarray(tensor.cpu().numpy())
