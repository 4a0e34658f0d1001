"""Calibrators as PyTorch modules; :mod:`hetcal.torch` is the public interface."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np

from hetcal._extras import missing_package
from hetcal._numeric.matrix import MASK
from hetcal._numeric.probabilities import FAR
from hetcal._typing import Float
from hetcal.calibrators import AutoCalibrator
from hetcal.export import maps

try:
    import torch
    from torch import Tensor, nn
except ImportError as error:
    raise missing_package("hetcal.torch needs torch", "torch") from error

__all__ = [
    "CalibratedModel",
    "Calibration",
    "collect_logits",
    "fit_from_loader",
    "logits_of",
    "probabilities",
]


class Calibration(nn.Module):
    """A fitted calibrator as a module: logits in, calibrated log-probabilities out.

    Parameters
    ----------
    calibrator : fitted calibrator
        Any of hetcal's calibrators, unless it contains an estimator of another library, or a
        :class:`hetcal.ClassWise` with a base other than :class:`hetcal.TemperatureScaling`,
        :class:`hetcal.PlattScaling` and :class:`hetcal.VectorScaling`.
    dtype : dtype of the parameters; logits of lower precision are converted to it
    from_probs : whether `forward` receives probabilities instead of logits
        Probabilities below the calibrator's `prob_floor_` are raised to it. If `prob_floor_` is None, the
        smallest normal float32 number is used in its place.

    Attributes
    ----------
    class_names : tuple of the names of the classes in the order of the columns; empty if unknown
    group_names : tuple of the names of the groups; empty if the calibrator does not use groups
        `forward` expects each group as its position in this tuple.

    Examples
    --------
    >>> import hetcal, torch
    >>> z, y = torch.tensor([[2.0, 0.0], [2.0, 0.0], [2.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 0, 1, 1])
    >>> layer = Calibration(hetcal.TemperatureScaling().fit(z, y))
    >>> layer(z[:1]).exp()  # three of four are correct
    tensor([[0.7500, 0.2500]])
    """

    def __init__(
        self, calibrator: Any, *, dtype: torch.dtype = torch.float32, from_probs: bool = False
    ) -> None:
        super().__init__()
        root = maps.exported_map(calibrator)
        groups = maps.group_names(root)
        self.n_classes, self.by_group = int(calibrator.n_features_in_), groups is not None
        self.keeps_decision = root.keeps_decision
        self.from_probs, self.prob_floor = from_probs, calibrator._export_floor()
        self.class_names: tuple[str, ...] = tuple(getattr(calibrator, "class_names_", None) or ())
        self.group_names: tuple[str, ...] = () if groups is None else tuple(map(str, groups))
        self.map = _module(root, dtype)

    def forward(self, logits: Tensor, groups: Tensor | None = None) -> Tensor:
        """Calibrated log-probabilities (n, K); `groups` (n,) are positions in `group_names`.

        For images (n, K, d1, d2, ...), the result has the same shape. `groups` then has one entry per image
        (n,) or per pixel (n, d1, d2, ...).
        """
        if logits.ndim > 2:
            return self._forward_images(logits, groups)
        if logits.ndim != 2 or logits.shape[1] != self.n_classes:
            raise ValueError(
                f"logits must have shape (n, {self.n_classes}), as in fit, got {tuple(logits.shape)}; "
                "pass one row per sample and one column per class"
            )
        if self.by_group and groups is None:
            raise ValueError(
                "groups must be given, since fit was called with them, got None; "
                "pass the position of each row's group in group_names"
            )
        if groups is not None and not self.by_group:
            raise ValueError(
                "groups must be left out, since the calibrator does not use them, got a tensor; "
                "to calibrate by group, fit a class-wise calibrator with groups"
            )
        if self.from_probs:
            p = logits.to(torch.promote_types(logits.dtype, torch.float32))
            logits = _keep_argmax(p.clamp(min=self.prob_floor).log(), p.argmax(dim=1))
        log_p: Tensor = self.map(logits, groups)
        return log_p

    def _forward_images(self, logits: Tensor, groups: Tensor | None) -> Tensor:
        """Calibrated log-probabilities in the shape of the images (n, K, d1, d2, ...)."""
        if logits.shape[1] != self.n_classes:
            raise ValueError(
                f"logits must have {self.n_classes} classes in dimension 1, as in fit, got shape "
                f"{tuple(logits.shape)}; pass one channel per class"
            )
        images = logits.movedim(1, -1)
        shape = images.shape[:-1]
        if groups is not None:
            if groups.ndim == 1:
                groups = groups.reshape(-1, *[1] * (len(shape) - 1)).expand(shape)
            groups = groups.reshape(-1)
        log_p = self.forward(images.reshape(-1, self.n_classes), groups)
        return log_p.reshape(*shape, self.n_classes).movedim(-1, 1)


class CalibratedModel(nn.Module):
    """A network followed by a calibrator.

    Parameters
    ----------
    net : module whose output contains logits (n, K), in any form that :func:`logits_of` accepts
        The logits of images may have the shape (n, K, d1, d2, ...).
    calibrator : fitted calibrator
    dtype : dtype of the calibrator's parameters
    from_probs : whether the network outputs probabilities instead of logits
    """

    def __init__(
        self,
        net: nn.Module,
        calibrator: Any,
        *,
        dtype: torch.dtype = torch.float32,
        from_probs: bool = False,
    ) -> None:
        super().__init__()
        self.net = net
        self.calibration = Calibration(calibrator, dtype=dtype, from_probs=from_probs)

    def forward(self, *inputs: Any, groups: Tensor | None = None, **named: Any) -> Tensor:
        """Calibrated log-probabilities in the shape of the network's logits.

        `groups` is the argument of :meth:`Calibration.forward`. All other arguments go to the network.
        """
        log_p: Tensor = self.calibration(logits_of(self.net(*inputs, **named)), groups)
        return log_p

    def predict_proba(self, *inputs: Any, groups: Tensor | None = None, **named: Any) -> Tensor:
        """Calibrated probabilities in the shape of the network's logits; arguments as in `forward`."""
        log_p = self.forward(*inputs, groups=groups, **named)
        return probabilities(log_p) if self.calibration.keeps_decision else log_p.exp()


def fit_from_loader(
    model: nn.Module,
    loader: Iterable[Any],
    calibrator: Any = None,
    *,
    device: str | torch.device | None = None,
    amp: bool = False,
    progress: bool = True,
    ignore_index: int | None = None,
) -> CalibratedModel:
    """Run a network over validation data, fit a calibrator to its logits, and return both as one model.

    Parameters
    ----------
    model : network
        It runs in evaluation mode. Afterwards, each of its modules is in its previous mode again.
    loader : batches of inputs and labels
        Each batch is a tuple or list of inputs followed by the labels, such as ``(inputs, labels)``, or a
        mapping of the network's named inputs and ``labels``.
    calibrator : unfitted calibrator; default ``AutoCalibrator()``
    device : device to which the network is moved, and where it stays
        By default the device of its first parameter, or the CPU if it has no parameters.
    amp : whether to run the network in mixed precision
    progress : whether to show a progress bar, if tqdm is installed
    ignore_index : label of rows that the fit leaves out, such as 255 for unlabelled pixels
    """
    z, y = collect_logits(model, loader, device=device, amp=amp, progress=progress)
    calibrator = AutoCalibrator() if calibrator is None else calibrator
    calibrator.fit(z, y, **({} if ignore_index is None else {"ignore_index": ignore_index}))
    return CalibratedModel(model, calibrator).to(z.device)


def collect_logits(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    device: str | torch.device | None = None,
    amp: bool = False,
    progress: bool = True,
) -> tuple[Tensor, Tensor]:
    """Run a network over all batches, and return logits (n, K) in float32 and labels (n,).

    Both tensors are on the device of the network. The logits of images have the shape (n, K, d1, d2, ...),
    and their labels (n, d1, d2, ...). The parameters are described in :func:`fit_from_loader`.
    """
    first = next(model.parameters(), None)
    if device is not None:
        target = torch.device(device)
    else:
        target = torch.device("cpu") if first is None else first.device
    modes = {module: module.training for module in model.modules()}
    model.to(target).eval()
    precision = torch.autocast(target.type) if amp else nullcontext()
    collected: list[tuple[Tensor, Tensor]] = []
    try:
        with torch.inference_mode(), precision:
            for batch in _with_progress(loader, progress):
                inputs, named, labels = _split_batch(batch, target)
                collected.append((logits_of(model(*inputs, **named)).float(), labels))
    finally:
        for module, is_training in modes.items():  # modules before their children
            if module.training != is_training:
                module.train(is_training)
    if not collected:
        raise ValueError("loader must yield at least one batch, got none; pass a loader with batches left")
    # Tensors created in inference mode cannot be used in training, but clones made outside it can.
    return torch.cat([z for z, _ in collected]).clone(), torch.cat([y for _, y in collected]).clone()


def probabilities(log_p: Tensor) -> Tensor:
    """``exp(log_p)``; the argmax is preserved even if rounding would cause a tie."""
    return _keep_argmax(log_p.exp(), log_p.argmax(dim=1))


def logits_of(output: Any) -> Tensor:
    """Logits in a network's output.

    The output is the tensor of logits, an object or mapping with the tensor under ``logits`` (as in
    transformers), or a tuple or list whose first item is the tensor.
    """
    if isinstance(output, Tensor):
        return output
    logits = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if logits is None and isinstance(output, tuple | list) and output and isinstance(output[0], Tensor):
        logits = output[0]
    if not isinstance(logits, Tensor):
        raise TypeError(
            "net must return a tensor of logits, alone, under the attribute or key 'logits', or as the first "
            f"item of a tuple or list, got {type(output).__name__}; wrap it in a module that returns logits"
        )
    return logits


# -- maps as modules ------------------------------------------------------------------------------


def _module(part: maps.Map, dtype: torch.dtype) -> nn.Module:
    return _MODULES[type(part)](part, dtype)


class _Chain(nn.Module):
    def __init__(self, chain: maps.Chain, dtype: torch.dtype) -> None:
        super().__init__()
        self.steps = nn.ModuleList(_module(part, dtype) for part in chain.parts)

    def forward(self, z: Tensor, groups: Tensor | None) -> Tensor:
        for step in self.steps:
            z = step(z, groups)
        return z


class _Mixture(nn.Module):
    weights: Tensor

    def __init__(self, mixture: maps.Mixture, dtype: torch.dtype) -> None:
        super().__init__()
        self.members = nn.ModuleList(_module(part, dtype) for part in mixture.parts)
        self.keeps_decision = mixture.keeps_decision
        self.register_buffer("weights", torch.as_tensor(mixture.weights, dtype=dtype))

    def forward(self, z: Tensor, groups: Tensor | None) -> Tensor:
        log_p = torch.stack([member(z, groups) for member in self.members])
        weights = self.weights.to(log_p.dtype).log()
        # A log-probability is at most 0, but rounding can give a larger number.
        mixed = (log_p + weights[:, None, None]).logsumexp(dim=0).clamp(max=0)
        return _keep_argmax(mixed, z.argmax(dim=1)) if self.keeps_decision else mixed


class _Sliced(nn.Module):
    """A map with one row of parameters per class or per group, or one row for all rows of logits."""

    theta: Tensor

    def __init__(self, sliced: maps.Temperature | maps.Vector | maps.Platt, dtype: torch.dtype) -> None:
        super().__init__()
        self.sliced = sliced.slices is not None
        self.by_group = sliced.slices is not None and sliced.slices.groups is not None
        self.register_buffer("theta", torch.as_tensor(maps.theta_by_class(sliced), dtype=dtype))

    def rows(self, theta: Tensor, guess: Tensor, groups: Tensor | None) -> Tensor:
        """Parameters for every row of logits (n, p), or (1, p) if all rows share them."""
        if not self.sliced:
            return theta
        return theta[groups if self.by_group and groups is not None else guess]


class _Temperature(_Sliced):
    def forward(self, logits: Tensor, groups: Tensor | None) -> Tensor:
        z = logits.to(torch.promote_types(logits.dtype, self.theta.dtype))
        guess = z.argmax(dim=1)
        alpha = self.rows(self.theta, guess, groups).to(z.dtype)
        return _keep_argmax(((z - z.amax(dim=1, keepdim=True)) * alpha).log_softmax(dim=1), guess)


class _Vector(_Sliced):
    theta_rest: Tensor | None

    def __init__(self, vector: maps.Vector, dtype: torch.dtype) -> None:
        super().__init__(vector, dtype)
        self.center, self.keep_decision = vector.center, vector.keep_decision
        rest = None
        if not vector.center:  # also store the rounding error of θ, which large logits would amplify
            exact = torch.as_tensor(maps.theta_by_class(vector), dtype=torch.float64)
            rest = (exact - self.theta.double()).to(dtype)
        self.register_buffer("theta_rest", rest)

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *arguments: Any) -> None:
        if self.theta_rest is not None:  # earlier versions did not save this buffer
            state.setdefault(f"{prefix}theta_rest", torch.zeros_like(self.theta_rest))
        super()._load_from_state_dict(state, prefix, *arguments)

    def forward(self, logits: Tensor, groups: Tensor | None) -> Tensor:
        z = logits.to(torch.promote_types(logits.dtype, self.theta.dtype))
        guess = z.argmax(dim=1)
        u = self._scaled(z, guess, groups)
        if not self.keep_decision:
            return (u - u.amax(dim=1, keepdim=True)).to(z.dtype).log_softmax(dim=1)
        u = (u - u.gather(1, guess[:, None])).to(z.dtype).clamp(max=0)
        return _keep_argmax(u.log_softmax(dim=1), guess)

    def _scaled(self, z: Tensor, guess: Tensor, groups: Tensor | None) -> Tensor:
        """``a ⊙ z + b``, where z is centred first if `center` is True.

        Uncentred logits can be large, and float32 is too coarse for the differences of large numbers. Without
        centring, float64 is therefore used if the device supports it.
        """
        if self.center:
            below = z - z.amax(dim=1, keepdim=True)
            z = below - below.clamp(min=-FAR).mean(dim=1, keepdim=True)
        wide = z.dtype if self.center or z.device.type == "mps" else torch.float64  # MPS has no float64
        theta = self.rows(self.theta, guess, groups).to(wide)
        if self.theta_rest is not None:
            theta = theta + self.rows(self.theta_rest, guess, groups).to(wide)
        scale, bias = theta.chunk(2, dim=1)
        return scale * z.to(wide) + bias


class _Matrix(nn.Module):
    change: Tensor
    bias: Tensor
    curves: Tensor

    def __init__(self, matrix: maps.Matrix, dtype: torch.dtype) -> None:
        super().__init__()
        self.inputs, self.keep_decision = matrix.inputs, matrix.keep_decision
        self.register_buffer("change", torch.as_tensor(matrix.change, dtype=dtype))
        self.register_buffer("bias", torch.as_tensor(matrix.bias, dtype=dtype))
        self.has_curves = matrix.curves is not None
        if matrix.curves is not None:
            arrays = np.stack([matrix.curves.knots, matrix.curves.widths, matrix.curves.weights])
            self.register_buffer("curves", torch.as_tensor(arrays, dtype=dtype))  # shape (3, K, m)

    def forward(self, logits: Tensor, groups: Tensor | None) -> Tensor:  # noqa: ARG002
        z = logits.to(torch.promote_types(logits.dtype, self.bias.dtype))
        guess = z.argmax(dim=1)
        below = z - z.amax(dim=1, keepdim=True)
        scaled = (self.inputs.alpha * below).clamp(min=-self.inputs.limit)
        if self.inputs.center == "mean":
            x = scaled - scaled.mean(dim=1, keepdim=True)
        else:
            x = scaled.log_softmax(dim=1)
        own = torch.where(below < -MASK, self.inputs.alpha * below, x)
        u = own + x @ self.change.to(z.dtype).T + self.bias.to(z.dtype)
        if self.has_curves:
            u = u + self._curves(x)
        if not self.keep_decision:
            return u.log_softmax(dim=1)
        u = (u - u.gather(1, guess[:, None])).clamp(max=0)
        return _keep_argmax(u.log_softmax(dim=1), guess)

    def _curves(self, x: Tensor) -> Tensor:
        """Values (n, K) of the curves of a `maps.Matrix` for logits `x` (n, K)."""
        knots, widths, weights = self.curves.to(x.dtype).unbind()
        likelihood = (x - x.amax(dim=1, keepdim=True)).exp()
        others = likelihood @ (1 - torch.eye(x.shape[1], dtype=x.dtype, device=x.device))
        limit = self.inputs.limit
        distance = ((likelihood.log() - others.log()).clamp(-limit, limit)[..., None] - knots).abs()
        smooth = distance + 2 * widths * nn.functional.softplus(-distance / widths)
        return (weights * smooth).sum(dim=2)


class _Platt(_Sliced):
    def __init__(self, platt: maps.Platt, dtype: torch.dtype) -> None:
        super().__init__(platt, dtype)
        self.pool = platt.pool

    def forward(self, logits: Tensor, groups: Tensor | None) -> Tensor:
        top = _TopLabel(logits.to(torch.promote_types(logits.dtype, self.theta.dtype)))
        theta = self.rows(self.theta, top.guess, groups).to(top.odds.dtype)
        return top.spread((theta[:, 0] * top.odds + theta[:, 1]).sigmoid(), pool=self.pool)


class _Binary(nn.Module):
    theta: Tensor
    theta_rest: Tensor

    def __init__(self, binary: maps.Binary, dtype: torch.dtype) -> None:
        super().__init__()
        self.n_knots, self.keep_decision = len(binary.knots), binary.keep_decision
        numbers = (binary.alpha, binary.limit), binary.polynomial, binary.knots, binary.widths, binary.weights
        exact = torch.as_tensor(np.concatenate(numbers), dtype=torch.float64)
        self.register_buffer("theta", exact.to(dtype))
        self.register_buffer("theta_rest", (exact - self.theta.double()).to(dtype))  # rounding error of theta

    def forward(self, logits: Tensor, groups: Tensor | None) -> Tensor:  # noqa: ARG002
        z = logits.to(torch.promote_types(logits.dtype, self.theta.dtype))
        wide = z.dtype if z.device.type == "mps" else torch.float64  # MPS has no float64
        u = self._calibrated_log_odds(z.to(wide))
        guess = z.argmax(dim=1)
        if self.keep_decision:
            u = torch.where(guess == 1, u.clamp(min=0), u.clamp(max=0))
        log_p = torch.stack([torch.zeros_like(u), u], dim=1).log_softmax(dim=1).to(z.dtype)
        return _keep_argmax(log_p, guess) if self.keep_decision else log_p

    def _calibrated_log_odds(self, z: Tensor) -> Tensor:
        theta = self.theta.to(z.dtype) + self.theta_rest.to(z.dtype)
        scalars, (knots, widths, weights) = theta[:5], theta[5:].reshape(3, self.n_knots)
        alpha, limit, constant, slope, quadratic = scalars.unbind()
        x = (alpha * (z[:, 1] - z[:, 0])).clamp(-limit, limit)
        distance = (x[:, None] - knots).abs()
        smooth = distance + 2 * widths * nn.functional.softplus(-distance / widths)
        u: Tensor = constant + x * (slope + x * quadratic) + (weights * smooth).sum(dim=1)
        return u


class _Tabulated(nn.Module):
    """A map of the confidence, defined by the tables `x` and `y`."""

    x: Tensor
    y: Tensor

    def __init__(self, x: Float, y: Float, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("x", torch.as_tensor(np.asarray(x), dtype=dtype))
        self.register_buffer("y", torch.as_tensor(np.asarray(y), dtype=dtype))

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *arguments: Any) -> None:
        state.pop(f"{prefix}theta", None)  # earlier versions saved an empty tensor of this name
        super()._load_from_state_dict(state, prefix, *arguments)

    def forward(self, logits: Tensor, groups: Tensor | None) -> Tensor:  # noqa: ARG002
        top = _TopLabel(logits.to(torch.promote_types(logits.dtype, self.x.dtype)))
        confidence = top.odds.sigmoid()
        x, y = self.x.to(confidence.dtype), self.y.to(confidence.dtype)
        return top.spread(self.look_up(x, y, confidence))

    def look_up(self, x: Tensor, y: Tensor, confidence: Tensor) -> Tensor:
        """Calibrated confidences (n,) for `confidence` (n,), from the tables `x` and `y`."""
        raise NotImplementedError


class _Curve(_Tabulated):
    def __init__(self, curve: maps.Curve, dtype: torch.dtype) -> None:
        super().__init__(curve.x, curve.y, dtype)

    def look_up(self, x: Tensor, y: Tensor, confidence: Tensor) -> Tensor:
        if len(x) == 1:
            return y.expand(len(confidence))
        left = (torch.searchsorted(x, confidence, right=True) - 1).clamp(0, len(x) - 2)
        width = x[left + 1] - x[left]
        # Knots can be equal, in files or after rounding to a short type. As in `numpy.interp`, the function
        # then jumps to the value of the last of them.
        jump = (confidence >= x[left + 1]).to(confidence.dtype)
        divisor = torch.where(width > 0, width, 1.0)  # a division by zero would make gradients NaN
        fraction = torch.where(width > 0, (confidence - x[left]) / divisor, jump).clamp(0, 1)
        return y[left] + fraction * (y[left + 1] - y[left])


class _Steps(_Tabulated):
    def __init__(self, steps: maps.Steps, dtype: torch.dtype) -> None:
        super().__init__(steps.edges, steps.values, dtype)

    def look_up(self, x: Tensor, y: Tensor, confidence: Tensor) -> Tensor:
        return y[(torch.searchsorted(x, confidence) - 1).clamp(0, len(y) - 1)]


_MODULES: dict[type[maps.Map], Callable[[Any, torch.dtype], nn.Module]] = {
    maps.Binary: _Binary,
    maps.Chain: _Chain,
    maps.Curve: _Curve,
    maps.Mixture: _Mixture,
    maps.Platt: _Platt,
    maps.Steps: _Steps,
    maps.Temperature: _Temperature,
    maps.Matrix: _Matrix,
    maps.Vector: _Vector,
}


class _TopLabel:
    """Predicted class of every row, its log-odds, and the other probabilities, scaled to sum to 1."""

    def __init__(self, z: Tensor) -> None:
        self.guess = z.argmax(dim=1)
        others = z.scatter(1, self.guess[:, None], -torch.inf)
        self.share = others.softmax(dim=1)
        # The log-odds are max(z) − logsumexp(others), and logsumexp(others) = max(others) − log(max(share)).
        # They are therefore computed from max(z) − max(others), which is accurate even for large logits.
        odds = z.amax(dim=1) - others.amax(dim=1) + self.share.amax(dim=1).log()
        self.odds = odds.clamp(max=maps.MAX_LOG_ODDS)

    def spread(self, confidence: Tensor, *, pool: bool = False) -> Tensor:
        """Log-probabilities with `confidence` for the predicted class, as in `_numeric.passes.spread`."""
        spread = _pool if pool else _level
        return _keep_argmax(spread(self.share, self.guess, confidence), self.guess)


def _level(share: Tensor, guess: Tensor, confidence: Tensor) -> Tensor:
    """Log-probabilities with `confidence`, or 1/K if that is larger, for the predicted class.

    The other classes are mixed with just enough of the uniform distribution that none overtakes the predicted
    class.
    """
    n_classes = share.shape[1]
    c = confidence.clamp(min=1 / n_classes)
    largest, uniform = share.amax(dim=1), 1 / (n_classes - 1)
    odds = c / (1 - c)
    excess = (largest - uniform).clamp(min=torch.finfo(share.dtype).tiny)
    mix = ((largest - odds) / excess).clamp(0, 1)
    share = (1 - mix)[:, None] * share + mix[:, None] * uniform
    return (share * (1 - c)[:, None]).scatter(1, guess[:, None], c[:, None]).log()


def _pool(share: Tensor, guess: Tensor, confidence: Tensor) -> Tensor:
    """Log-probabilities with `confidence` for the predicted class if no other class overtakes it.

    Otherwise, the predicted class and just enough of the most likely other classes receive their mean
    probability, so that none overtakes it.
    """
    c = confidence
    others = share * (1 - c)[:, None]
    descending = others.sort(dim=1, descending=True).values[:, :-1]
    count = torch.arange(2, share.shape[1] + 1, dtype=share.dtype, device=share.device)
    means = (c[:, None] + descending.cumsum(dim=1)) / count
    level = torch.maximum(c, means.amax(dim=1))[:, None]
    return torch.minimum(others, level).scatter(1, guess[:, None], level).log()


def _keep_argmax(scores: Tensor, guess: Tensor) -> Tensor:
    """Make `guess` (n,) the only argmax of every row.

    Other entries that reach or exceed the score of `guess` are set to the next floating-point number below
    this score.
    """
    top = scores.gather(1, guess[:, None])
    below = torch.nextafter(top, torch.full_like(top, -torch.inf))
    is_other = torch.ones_like(scores, dtype=torch.bool).scatter(1, guess[:, None], False)
    return torch.where(is_other & (scores >= top), below, scores)


# -- loaders --------------------------------------------------------------------------------------


def _split_batch(batch: Any, device: torch.device) -> tuple[tuple[Any, ...], dict[str, Any], Tensor]:
    """Positional inputs, named inputs and labels of a batch, on the device."""
    if isinstance(batch, Mapping):
        if "labels" not in batch:
            keys = ", ".join(map(str, batch))
            raise ValueError(f"a batch must have the key 'labels', got the keys {keys}; add this key")
        named = {key: _to_device(value, device) for key, value in batch.items() if key != "labels"}
        return (), named, torch.as_tensor(batch["labels"]).to(device)
    if not isinstance(batch, tuple | list) or len(batch) < 2:
        length = f" of length {len(batch)}" if isinstance(batch, tuple | list) else ""
        raise TypeError(
            "a batch must be a tuple or list of inputs and labels, or a mapping with the key 'labels', "
            f"got {type(batch).__name__}{length}; make the loader yield (inputs, labels)"
        )
    *inputs, labels = batch
    return tuple(_to_device(value, device) for value in inputs), {}, torch.as_tensor(labels).to(device)


def _to_device(value: Any, device: torch.device) -> Any:
    return value.to(device) if isinstance(value, Tensor) else value


def _with_progress(loader: Iterable[Any], shown: bool) -> Iterable[Any]:
    if not shown:
        return loader
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return loader
    bar: Iterable[Any] = tqdm(loader, desc="logits", leave=False)
    return bar
