"""Training runs: their recipes, their names, and the grid behind the paper's tables and figures.

A :class:`Run` describes one training completely: data set, corruption, seed and recipe. Its name is canonical
(equal runs have equal names) and can be parsed, so the command line and the result files need only the name.

The paper does not state everything. We fix batch size 128, weight decay 2e-4 with Adam and 5e-4 with SGD
(added to the gradient of every parameter) and Nesterov momentum 0.9.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from decimal import Decimal
from functools import cache
from typing import Any, TypedDict, Unpack

__all__ = [
    "RECIPES",
    "SEEDS",
    "Recipe",
    "Run",
    "clean",
    "few",
    "items_of",
    "noise",
    "paper_grid",
    "parse",
    "runs_for",
    "sample",
    "under",
    "with_default_recipe",
]

SEEDS = (0, 1, 2, 3, 4)


@dataclass(frozen=True)
class Recipe:
    """Optimiser settings of a training.

    Attributes
    ----------
    rates : tuple of float
        Learning rate of each phase.
    drops : tuple of float
        Ends of all phases but the last, as fractions of the whole training.
    weight_decay : float
    patience : float
        Early stopping: epochs without a better validation accuracy, as a fraction of the whole training.
        Zero means no early stopping.
    epochs, batch_size : int
    """

    rates: tuple[float, ...]
    drops: tuple[float, ...]
    weight_decay: float
    patience: float = 0.0
    epochs: int = 200
    batch_size: int = 128


RECIPES: dict[str, Recipe] = {
    "adam": Recipe(rates=(1e-3, 1e-4), drops=(80 / 200,), weight_decay=2e-4),
    "sgd": Recipe(
        rates=(0.1, 0.02, 0.004, 0.0008),
        drops=(60 / 200, 120 / 200, 160 / 200),
        weight_decay=5e-4,
        patience=60 / 200,  # the length of the longest phase
    ),
}


@dataclass(frozen=True)
class Run:
    """Complete description of one training.

    :func:`clean`, :func:`noise`, :func:`under`, :func:`sample`, :func:`few` and :func:`parse` create runs and
    fill in the recipe.

    Attributes
    ----------
    data : {"c10", "c100"}
        Data set.
    kind : {"clean", "noise", "under", "few"}
        Corruption of the training rows: none; labels redrawn with probability ``rate``; a fraction ``rate``
        of the rows; ``per_class`` rows of each class.
    classes : (int, int) or None
        First and last class affected by noise or under-sampling; None means all.
    rate : float or None
        Noise rate or sampling rate.
    per_class : int or None
        Training rows of each class.
    seed : int
        Determines the split, the corruption, the initial weights and the order of the data.
    network : str
        Key of ``networks.NETWORKS``.
    recipe : str
        Key of ``RECIPES``: optimiser and learning rates.
    epochs, batch_size : int
        The learning-rate drops scale with the number of epochs.
    weight_decay : float
        Coupled L2 penalty: ``weight_decay * w`` is added to the gradient.
    """

    data: str
    kind: str
    classes: tuple[int, int] | None
    rate: float | None
    per_class: int | None
    seed: int
    network: str
    recipe: str
    epochs: int
    batch_size: int
    weight_decay: float

    def __post_init__(self) -> None:
        """Check the fields."""
        _check_corruption(self)
        _check_recipe(self)

    @property
    def n_classes(self) -> int:
        """Number of classes of the data set."""
        return _DEFAULTS[self.data][2]

    @property
    def name(self) -> str:
        """Canonical name, such as ``c10-noise-0-4-r0.30-s0``, with a suffix for every non-default setting."""
        where = "all" if self.classes is None else f"{self.classes[0]}-{self.classes[1]}"
        corruption = {
            "clean": "clean",
            "noise": f"noise-{where}-r{_plain(self.rate)}",
            "under": f"under-{where}-r{_plain(self.rate)}",
            "few": f"few-n{self.per_class}",
        }[self.kind]
        return "-".join([self.data, corruption, f"s{self.seed}", *_suffixes(self)])

    @property
    def schedule(self) -> tuple[tuple[int, float], ...]:
        """``(first epoch, learning rate)`` of each phase, epochs counted from 1."""
        recipe = RECIPES[self.recipe]
        starts = [1, *(round(fraction * self.epochs) + 1 for fraction in recipe.drops)]
        # In very short runs, drops may coincide (the last rate is used) or lie after the end.
        rates = dict(zip(starts, recipe.rates, strict=True))
        return tuple((start, rate) for start, rate in rates.items() if start <= self.epochs)

    @property
    def choice(self) -> str:
        """The epoch that represents the run: ``best`` validation accuracy, ``early`` with early stopping."""
        return "early" if RECIPES[self.recipe].patience else "best"

    def early_stop(self, val_accuracy: Sequence[float]) -> tuple[int, bool]:
        """Apply early stopping to a history of validation accuracies.

        Returns
        -------
        best : int
            Best epoch before training would stop, counted from 1; the first of ties.
        stopped : bool
            Whether training would have stopped.
        """
        patience, best = round(RECIPES[self.recipe].patience * self.epochs), 0
        for index, accuracy in enumerate(val_accuracy):
            if accuracy > val_accuracy[best]:
                best = index
            elif patience and index - best >= patience:
                return best + 1, True
        return best + 1, False

    def phase(self, epoch: int) -> tuple[int, float]:
        """Return the number (from 1) and the learning rate of the phase that contains an epoch."""
        rates = [rate for first, rate in self.schedule if first <= epoch]
        return len(rates), rates[-1]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-compatible values."""
        return {key: list(v) if isinstance(v, tuple) else v for key, v in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Run:
        """Create a run from the result of :meth:`to_dict`."""
        names = {field.name for field in fields(cls)}
        if values.keys() != names:
            wrong = ", ".join(sorted(values.keys() ^ names))
            raise ValueError(
                f"values must have the fields of a run, got missing or extra fields {wrong}; use to_dict"
            )
        classes = values["classes"]
        return cls(**{**values, "classes": None if classes is None else (int(classes[0]), int(classes[1]))})


class Options(TypedDict, total=False):
    """Settings that replace those of the default recipe."""

    network: str
    recipe: str
    epochs: int
    batch_size: int
    weight_decay: float


def clean(data: str, seed: int, **options: Unpack[Options]) -> Run:
    """Train on all rows outside the validation set, without corruption."""
    return _make(data, "clean", seed, **options)


def noise(
    data: str, classes: tuple[int, int] | None, rate: float, seed: int, **options: Unpack[Options]
) -> Run:
    """Redraw labels of ``classes`` (first, last; None for all) with probability ``rate``.

    Rate 0 is :func:`clean`.
    """
    if rate == 0:
        return clean(data, seed, **options)
    return _make(data, "noise", seed, classes=classes, rate=rate, **options)


def under(
    data: str, classes: tuple[int, int] | None, rate: float, seed: int, **options: Unpack[Options]
) -> Run:
    """Keep a fraction ``rate`` of the rows of ``classes``; rate 1 is :func:`clean`."""
    if rate == 1:
        return clean(data, seed, **options)
    return _make(data, "under", seed, classes=classes, rate=rate, **options)


def sample(data: str, rate: float, seed: int, **options: Unpack[Options]) -> Run:
    """Keep a fraction ``rate`` of the rows of every class; rate 1 is :func:`clean`."""
    return under(data, None, rate, seed, **options)


def few(data: str, per_class: int, seed: int, **options: Unpack[Options]) -> Run:
    """Keep ``per_class`` training rows of every class."""
    return _make(data, "few", seed, per_class=per_class, **options)


def with_default_recipe(run: Run) -> Run:
    """Return the run with the same training rows and the default recipe of the data set."""
    rows = {"classes": run.classes, "rate": run.rate, "per_class": run.per_class}
    return _make(run.data, run.kind, run.seed, **rows)


def parse(name: str) -> Run:
    """Return the run with this name.

    Examples
    --------
    >>> parse("c10-noise-0-4-r0.30-s0") == noise("c10", (0, 4), 0.3, seed=0)
    True
    >>> parse("c100-clean-s1-e60-wd0.0001").epochs
    60
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(
            f'name must look like c10-noise-0-4-r0.30-s0, got "{name}"; list names with runs_for("table2")'
        )
    part = {key: value for key, value in match.groupdict().items() if value is not None}
    first, last = part.pop("first", None), part.pop("last", None)
    data, seed = part.pop("data"), int(part.pop("seed"))
    kind = part.pop("kind", "few" if "per_class" in part else "clean")
    options: dict[str, Any] = {key: _READ.get(key, str)(value) for key, value in part.items()}
    if first is not None and last is not None:
        options["classes"] = (int(first), int(last))
    run = _make(data, kind, seed, **options)
    if run.name != name:
        raise ValueError(f'name must be canonical, got "{name}"; write "{run.name}"')
    return run


def paper_grid() -> dict[str, tuple[Run, ...]]:
    """Return the runs behind every table and figure, five seeds each, ordered by seed."""
    by_seed = [_points(seed) for seed in SEEDS]
    return {name: tuple(run for points in by_seed for run in points[name]) for name in by_seed[0]}


def runs_for(name: str) -> tuple[Run, ...]:
    """Return the runs behind one table or figure."""
    grid = paper_grid()
    if name not in grid:
        raise ValueError(f'name must be one of {", ".join(grid)}, got "{name}"; see paper_grid')
    return grid[name]


def items_of(name: str) -> frozenset[str]:
    """Return the tables and figures that use a run."""
    return _items_by_run().get(name, frozenset())


@cache
def _items_by_run() -> dict[str, frozenset[str]]:
    items: dict[str, set[str]] = {}
    for item, runs in paper_grid().items():
        for run in runs:
            items.setdefault(run.name, set()).add(item)
    return {name: frozenset(used_in) for name, used_in in items.items()}


#: The CIFAR-100 sweeps use ResNet-20 for 100 epochs; WideResNet-28-10 would take ten hours on one GPU.
_SHORT: Options = {"network": "resnet20", "recipe": "adam", "epochs": 100}


def _points(seed: int) -> dict[str, tuple[Run, ...]]:
    """Runs of one seed behind each table and figure."""
    half100, half10 = (0, 49), (0, 4)
    table1 = (noise("c100", half100, 0.3, seed),)
    table2 = (noise("c10", half10, 0.3, seed),)
    rates = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
    return {
        "fig1": (clean("c100", seed), noise("c100", None, 0.3, seed), few("c100", 50, seed)),
        "fig2": tuple(sample("c100", rate, seed) for rate in (0.05, 0.1, 0.6, 1.0)),
        "fig3": table1,
        "fig4": (under("c100", half100, 0.1, seed),),
        "fig5": tuple(noise("c100", half100, rate, seed, **_SHORT) for rate in rates),
        "table1": table1,
        "fig6": table1,
        "fig7": (under("c100", half100, 0.05, seed),),
        "fig8": tuple(under("c100", half100, rate, seed, **_SHORT) for rate in (0.05, 0.1, 0.3, 0.6, 1.0)),
        "table2": table2,
        "fig9": (clean("c10", seed), noise("c10", None, 0.3, seed), few("c10", 100, seed)),
        "fig10": tuple(noise("c10", half10, rate, seed) for rate in rates),
        "fig11": table2,
        "fig12": tuple(sample("c10", rate, seed) for rate in (0.02, 0.1, 0.4, 1.0)),
        "fig13": (under("c10", half10, 0.06, seed),),
        "fig14": tuple(under("c10", half10, rate, seed) for rate in (0.01, 0.03, 0.06, 0.1, 0.3, 0.6, 1.0)),
    }


#: Default network and recipe, and the number of classes, of each data set.
_DEFAULTS: dict[str, tuple[str, str, int]] = {
    "c10": ("resnet20", "adam", 10),
    "c100": ("wrn28x10", "sgd", 100),
}

_NAME = re.compile(
    r"(?P<data>c\d+)"
    r"-(?:clean|few-n(?P<per_class>\d+)"
    r"|(?P<kind>noise|under)-(?:all|(?P<first>\d+)-(?P<last>\d+))-r(?P<rate>\d\.\d+))"
    r"-s(?P<seed>\d+)"
    r"(?:-net_(?P<network>\w+))?(?:-opt_(?P<recipe>\w+))?(?:-e(?P<epochs>\d+))?"
    r"(?:-b(?P<batch_size>\d+))?(?:-wd(?P<weight_decay>\d\.\d+))?"
)
_READ = {"per_class": int, "rate": float, "epochs": int, "batch_size": int, "weight_decay": float}


def _make(data: str, kind: str, seed: int, **settings: Any) -> Run:
    """Create a run with the defaults of its data set and recipe."""
    _check_choice("data", data, _DEFAULTS)
    network, recipe, n_classes = _DEFAULTS[data]
    recipe = settings.get("recipe", recipe)
    _check_choice("recipe", recipe, RECIPES)
    defaults = RECIPES[recipe]
    values = {
        "classes": None,
        "rate": None,
        "per_class": None,
        "network": network,
        "recipe": recipe,
        "epochs": defaults.epochs,
        "batch_size": defaults.batch_size,
        "weight_decay": defaults.weight_decay,
    } | settings
    if values["classes"] == (0, n_classes - 1):
        values["classes"] = None  # equal runs must have equal names
    return Run(data=data, kind=kind, seed=seed, **values)


def _suffixes(run: Run) -> list[str]:
    """Parts of the name for every setting that differs from the defaults."""
    network, recipe, _ = _DEFAULTS[run.data]
    defaults = RECIPES[run.recipe]
    parts = {
        f"net_{run.network}": run.network != network,
        f"opt_{run.recipe}": run.recipe != recipe,
        f"e{run.epochs}": run.epochs != defaults.epochs,
        f"b{run.batch_size}": run.batch_size != defaults.batch_size,
        f"wd{_plain(run.weight_decay)}": run.weight_decay != defaults.weight_decay,
    }
    return [part for part, differs in parts.items() if differs]


def _plain(value: float | None) -> str:
    """Format a number without exponent, with at least two decimals."""
    exact = Decimal(repr(value or 0.0))
    return max(f"{exact:.2f}", f"{exact:f}", key=len)


def _check_corruption(run: Run) -> None:
    """Check that the corruption and its parameters are consistent."""
    _check_choice("data", run.data, _DEFAULTS)
    _check_choice("kind", run.kind, ("clean", "noise", "under", "few"))
    sweeps = run.kind in ("noise", "under")
    if sweeps != (run.rate is not None) or (run.kind == "few") != (run.per_class is not None):
        raise ValueError(
            f"kind must agree with rate and per_class, got {run.kind} with rate {run.rate} and per_class "
            f"{run.per_class}; create runs with clean, noise, under, sample or few"
        )
    if run.rate is not None and not (0 < run.rate <= 1 and (run.kind == "noise" or run.rate < 1)):
        raise ValueError(f"rate must be in (0, 1], got {run.rate}; for rate 1 of under-sampling use clean")
    if run.per_class is not None and run.per_class < 1:
        raise ValueError(f"per_class must be 1 or more, got {run.per_class}; keep at least one row")
    n_classes = _DEFAULTS[run.data][2]
    if run.classes is not None and not (sweeps and 0 <= run.classes[0] <= run.classes[1] < n_classes):
        raise ValueError(
            f"classes must be the first and last class within 0..{n_classes - 1}, only for noise or "
            f"under-sampling, got {run.classes} with {run.kind}; pass None for all classes"
        )


def _check_recipe(run: Run) -> None:
    """Check the numeric settings of the recipe."""
    _check_choice("recipe", run.recipe, RECIPES)
    for field, least in (("seed", 0), ("epochs", 1), ("batch_size", 2), ("weight_decay", 0)):
        value = getattr(run, field)
        if not value >= least:
            raise ValueError(f"{field} must be {least} or more, got {value}; see RECIPES for typical values")


def _check_choice(argument: str, value: str, choices: Any) -> None:
    if value not in choices:
        raise ValueError(f'{argument} must be one of {", ".join(choices)}, got "{value}"; check the spelling')
