"""Calibrated PyTorch models: a calibrator as a module, alone or behind a network.

The modules hold the numbers of a calibrator as buffers, so that ``state_dict``, ``to(device)``,
``torch.compile`` and ``torch.export`` treat them as part of the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np

from hetcal._numeric.probabilities import FAR
from hetcal.calibrators import ClassWiseTemperatureScaling
from hetcal.maps import SURE, Chained, Map, Tree, floor_of, leaves, tree_of

try:
    import torch
    from torch import Tensor, nn
except ImportError as error:
    raise ImportError('hetcal.torch needs torch; install it with: pip install "hetcal[torch]"') from error

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
    calibrator : fitted calibrator of hetcal, any but class-wise ones that hold whole estimators
    dtype : type of the buffers; logits of half precision are computed in it
    from_probs : whether `forward` is given probabilities in place of logits
        Smaller ones than the calibrator's `prob_floor_` count as that.

    Attributes
    ----------
    class_names : names of the classes in the order of the columns; empty where they are not known
    group_names : names of the groups; a group is given to `forward` as its place in this list

    Examples
    --------
    >>> import hetcal, torch
    >>> z, y = torch.tensor([[2.0, 0.0], [2.0, 0.0], [2.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 0, 1, 1])
    >>> layer = Calibration(hetcal.TemperatureScaling().fit(z, y))
    >>> layer(z[:1]).exp()  # three of four are right
    tensor([[0.7500, 0.2500]])
    """

    def __init__(
        self, calibrator: Any, *, dtype: torch.dtype = torch.float32, from_probs: bool = False
    ) -> None:
        super().__init__()
        tree = tree_of(calibrator)
        parts = leaves(tree)
        named = next((part.groups for part in parts if part.groups is not None), None)
        self.n_classes, self.by_group = parts[0].n_classes, named is not None
        self.keeps_decision = all(part.keeps_decision for part in parts)
        self.from_probs, self.prob_floor = from_probs, floor_of(calibrator)
        self.class_names: tuple[str, ...] = tuple(getattr(calibrator, "class_names_", None) or ())
        self.group_names: tuple[str, ...] = () if named is None else tuple(map(str, named))
        self.map = _module_of(tree, dtype)

    def forward(self, logits: Tensor, groups: Tensor | None = None) -> Tensor:
        """Calibrated log-probabilities (n, K); `groups` (n,) holds places in `group_names`."""
        if logits.ndim != 2 or logits.shape[1] != self.n_classes:
            raise ValueError(
                f"logits must have shape (n, {self.n_classes}), as in fit, got {tuple(logits.shape)}; "
                "reshape them to one row per sample"
            )
        if self.by_group != (groups is not None):
            rule = "given, as they were to fit" if self.by_group else "left out, since fit was without them"
            raise ValueError(f"groups must be {rule}; a group is its place in group_names")
        if self.from_probs:
            work = logits.to(torch.promote_types(logits.dtype, torch.float32))
            logits = _keep(work.clamp(min=self.prob_floor).log(), work.argmax(dim=1))
        log_p: Tensor = self.map(logits, groups)
        return log_p


def _module_of(tree: Tree, dtype: torch.dtype) -> nn.Module:
    if isinstance(tree, Map):
        return _Leaf(tree, dtype)
    if isinstance(tree, Chained):
        return _Chain([_module_of(step, dtype) for step in tree.steps])
    return _Mixture(tree.weights, [_module_of(member, dtype) for member in tree.members], dtype)


class _Chain(nn.Module):
    """Modules one after the other."""

    def __init__(self, steps: list[nn.Module]) -> None:
        super().__init__()
        self.steps = nn.ModuleList(steps)

    def forward(self, z: Tensor, groups: Tensor | None) -> Tensor:
        for step in self.steps:
            z = step(z, groups)
        return z


class _Mixture(nn.Module):
    """The logarithm of a weighted mean of probabilities."""

    weights: Tensor

    def __init__(self, weights: Any, members: list[nn.Module], dtype: torch.dtype) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.keeps_decision = all(leaf.keeps_decision for leaf in self.modules() if isinstance(leaf, _Leaf))
        self.register_buffer("weights", torch.as_tensor(weights, dtype=dtype))

    def forward(self, z: Tensor, groups: Tensor | None) -> Tensor:
        log_p = torch.stack([member(z, groups) for member in self.members])
        weights = self.weights.to(log_p.dtype).log()
        mixed = (log_p + weights[:, None, None]).logsumexp(dim=0).clamp(max=0)  # rounding may exceed 1
        return _keep(mixed, z.argmax(dim=1)) if self.keeps_decision else mixed


class _Leaf(nn.Module):
    """One map of logits to log-probabilities."""

    theta: Tensor
    theta_rest: Tensor | None
    x: Tensor
    y: Tensor

    def __init__(self, made: Map, dtype: torch.dtype) -> None:
        super().__init__()
        self.kind, self.n_classes = made.kind, made.n_classes
        self.center, self.pool = made.center, made.pool
        self.sliced, self.by_group = made.sliced, made.groups is not None
        self.keeps_decision = made.keeps_decision
        self.register_buffer("theta_rest", None)
        for name, values in _buffers(made, dtype).items():
            self.register_buffer(name, values)

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *others: Any) -> None:
        if self.theta_rest is not None:  # states saved by earlier versions lack it
            state.setdefault(f"{prefix}theta_rest", torch.zeros_like(self.theta_rest))
        super()._load_from_state_dict(state, prefix, *others)

    def forward(self, logits: Tensor, groups: Tensor | None) -> Tensor:
        z = logits.to(torch.promote_types(logits.dtype, self.theta.dtype))
        guess = z.argmax(dim=1)
        at = (groups if self.by_group and groups is not None else guess) if self.sliced else None
        if self.kind == "vector":
            u = self._scaled(z, at)
            if not self.keeps_decision:
                return (u - u.amax(dim=1, keepdim=True)).to(z.dtype).log_softmax(dim=1)
            # No class passes the predicted one.
            u = (u - u.gather(1, guess[:, None])).to(z.dtype).clamp(max=0)
            return _keep(u.log_softmax(dim=1), guess)
        theta = _at(self.theta, at, z.dtype)
        if self.kind == "temperature":
            return _keep(((z - z.amax(dim=1, keepdim=True)) * theta).log_softmax(dim=1), guess)
        others = z.scatter(1, guess[:, None], -torch.inf)
        share = others.softmax(dim=1)
        # logsumexp(others) = max(others) − log(max(share)): differences stay accurate for large logits.
        odds = (z.amax(dim=1) - others.amax(dim=1) + share.amax(dim=1).log()).clamp(max=SURE)
        spread = _pooled if self.pool else _spread
        return _keep(spread(share, guess, self._confidence(odds, theta)), guess)

    def _scaled(self, z: Tensor, at: Tensor | None) -> Tensor:
        """``a ⊙ z + b``; in double without centring, since float32 is too coarse for large logits."""
        if self.center:
            below = z - z.amax(dim=1, keepdim=True)
            z = below - below.clamp(min=-FAR).mean(dim=1, keepdim=True)
        wide = z.dtype if self.center or z.device.type == "mps" else torch.float64  # MPS has no doubles
        theta = _at(self.theta, at, wide)
        if self.theta_rest is not None:
            theta = theta + _at(self.theta_rest, at, wide)
        return theta[:, : self.n_classes] * z.to(wide) + theta[:, self.n_classes :]

    def _confidence(self, odds: Tensor, theta: Tensor) -> Tensor:
        if self.kind == "platt":
            return (theta[:, 0] * odds + theta[:, 1]).sigmoid()
        x, y, c = self.x.to(odds.dtype), self.y.to(odds.dtype), odds.sigmoid()
        if self.kind == "steps":
            return y[(torch.searchsorted(x, c) - 1).clamp(0, len(y) - 1)]
        if len(x) == 1:
            return y.expand(len(c))
        at = (torch.searchsorted(x, c) - 1).clamp(0, len(x) - 2)
        share = ((c - x[at]) / (x[at + 1] - x[at])).clamp(0, 1)
        return y[at] + share * (y[at + 1] - y[at])


class CalibratedModel(nn.Module):
    """A network with a calibrator behind it.

    Parameters
    ----------
    net : module whose output is logits (n, K), or has them as ``.logits`` (as in transformers)
    calibrator : fitted calibrator
    dtype : type of the calibrator's numbers
    from_probs : whether the network's output is probabilities
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
        """Calibrated log-probabilities (n, K) of the network's output."""
        log_p: Tensor = self.calibration(logits_of(self.net(*inputs, **named)), groups)
        return log_p

    def predict_proba(self, *inputs: Any, groups: Tensor | None = None, **named: Any) -> Tensor:
        """Calibrated probabilities (n, K)."""
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
) -> CalibratedModel:
    """Run a network over validation data, fit a calibrator on its logits, and return both together.

    Parameters
    ----------
    model : network, put back into the mode (training or not) that it was in
    loader : batches ``(inputs, labels)``, or mappings with ``labels`` among the network's named inputs
    calibrator : not yet fitted; default ``ClassWiseTemperatureScaling(gamma="cv")``
    device : where to run; default: where the network's first parameter is
    amp : whether to run the network in mixed precision
    progress : whether to show a bar
    """
    z, y = collect_logits(model, loader, device=device, amp=amp, progress=progress)
    made = ClassWiseTemperatureScaling(gamma="cv") if calibrator is None else calibrator
    made.fit(z, y)
    return CalibratedModel(model, made).to(z.device)


def collect_logits(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    device: str | torch.device | None = None,
    amp: bool = False,
    progress: bool = True,
) -> tuple[Tensor, Tensor]:
    """Logits (n, K) in float32 and labels (n,) of all batches, on the device."""
    first = next(model.parameters(), None)
    place = (
        torch.device(device) if device is not None else torch.device("cpu") if first is None else first.device
    )
    was_training = model.training
    model.to(place).eval()
    precision = torch.autocast(place.type) if amp else nullcontext()
    parts: list[tuple[Tensor, Tensor]] = []
    try:
        with torch.inference_mode(), precision:
            for batch in _bar(loader, progress):
                inputs, named, labels = _taken_apart(batch, place)
                parts.append((logits_of(model(*inputs, **named)).float(), labels))
    finally:
        model.train(was_training)
    if not parts:
        raise ValueError("loader must yield at least one batch, got none")
    return torch.cat([z for z, _ in parts]).clone(), torch.cat([y for _, y in parts]).clone()


def probabilities(log_p: Tensor) -> Tensor:
    """``exp`` of log-probabilities with the argmax kept, where rounding would make a tie."""
    return _keep(log_p.exp(), log_p.argmax(dim=1))


def logits_of(output: Any) -> Tensor:
    """Logits from what a network returns: a tensor, or an object or mapping that has them as ``logits``."""
    if isinstance(output, Tensor):
        return output
    found = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if found is None and isinstance(output, tuple | list) and output and isinstance(output[0], Tensor):
        found = output[0]
    if not isinstance(found, Tensor):
        raise TypeError(
            f"net must return logits or an object with .logits, got {type(output).__name__}; "
            "wrap it in a module that does"
        )
    return found


def _buffers(made: Map, dtype: torch.dtype) -> dict[str, Tensor]:
    arrays = {"theta": made.theta, "x": made.x, "y": made.y}
    buffers = {
        name: torch.as_tensor(np.asarray(a), dtype=dtype) for name, a in arrays.items() if a is not None
    }
    if (
        made.kind == "vector" and not made.center
    ):  # the rounding error of θ, which large logits would multiply
        rest = torch.as_tensor(made.theta, dtype=torch.float64) - buffers["theta"].double()
        buffers["theta_rest"] = rest.to(dtype)
    return buffers


def _at(theta: Tensor, at: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Parameters of every row, or the shared ones."""
    return (theta if at is None else theta[at]).to(dtype)


def _keep(scores: Tensor, guess: Tensor) -> Tensor:
    """Make `guess` the argmax where rounding made a tie: others go one unit in the last place below it."""
    mine = scores.gather(1, guess[:, None])
    below = torch.nextafter(mine, torch.full_like(mine, -torch.inf))
    other = torch.ones_like(scores, dtype=torch.bool).scatter(1, guess[:, None], False)
    return torch.where(other & (scores >= mine), below, scores)


def _spread(share: Tensor, guess: Tensor, confidence: Tensor) -> Tensor:
    """Log-probabilities: `confidence` for the predicted class, and a `share` of the rest for every other."""
    n_classes = share.shape[1]
    c = confidence.clamp(min=1 / n_classes)
    largest, uniform = share.amax(dim=1), 1 / (n_classes - 1)
    odds = c / (1 - c)
    room = (largest - uniform).clamp(min=torch.finfo(share.dtype).tiny)
    mix = ((largest - odds) / room).clamp(0, 1)
    share = (1 - mix)[:, None] * share + mix[:, None] * uniform
    return (share * (1 - c)[:, None]).scatter(1, guess[:, None], c[:, None]).log()


def _pooled(share: Tensor, guess: Tensor, confidence: Tensor) -> Tensor:
    """The same, but classes that would overtake the predicted one share with it what they have."""
    c = confidence
    others = share * (1 - c)[:, None]
    down = others.sort(dim=1, descending=True).values[:, :-1]
    count = torch.arange(2, share.shape[1] + 1, dtype=share.dtype, device=share.device)
    means = (c[:, None] + down.cumsum(dim=1)) / count
    level = torch.maximum(c, means.amax(dim=1))[:, None]
    return torch.minimum(others, level).scatter(1, guess[:, None], level).log()


def _taken_apart(batch: Any, place: torch.device) -> tuple[tuple[Any, ...], dict[str, Any], Tensor]:
    if isinstance(batch, Mapping):
        if "labels" not in batch:
            raise ValueError(f"a batch must have labels, got the names {', '.join(map(str, batch))}")
        named = {key: _moved(value, place) for key, value in batch.items() if key != "labels"}
        return (), named, torch.as_tensor(batch["labels"]).to(place)
    if not isinstance(batch, tuple | list) or len(batch) < 2:
        raise TypeError(
            f"a batch must be (inputs, labels) or a mapping with labels, got {type(batch).__name__}"
        )
    *inputs, labels = batch
    return tuple(_moved(value, place) for value in inputs), {}, torch.as_tensor(labels).to(place)


def _moved(value: Any, place: torch.device) -> Any:
    return value.to(place) if isinstance(value, Tensor) else value


def _bar(loader: Iterable[Any], shown: bool) -> Iterable[Any]:
    if not shown:
        return loader
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return loader
    bar: Iterable[Any] = tqdm(loader, desc="logits", leave=False)
    return bar
