"""Training runs: their recipes, their names, and the grid of all runs behind the tables and figures.

A :class:`Run` describes one training completely: data set, corruption, seed, network and recipe. Its name is
canonical (equal runs have equal names) and can be parsed. The command line and the result files therefore
refer to a run by its name.

Some settings are not stated in the paper. We use batch size 128, Nesterov momentum 0.9 with SGD, and weight
decay 2e-4 with Adam and 5e-4 with SGD. The weight decay applies to every parameter, as an L2 penalty.
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
        Where each phase except the last ends, as a fraction of the whole training.
    weight_decay : float
    patience : float
        Number of epochs without a better validation accuracy after which training may stop early, as a
        fraction of the whole training. Zero means no early stopping.
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
        Corruption of the training rows. ``clean``: none. ``noise``: labels of ``classes`` are redrawn with
        probability ``rate``. ``under``: only a fraction ``rate`` of the rows of ``classes`` is kept. ``few``:
        only ``per_class`` rows of each class are kept.
    classes : (int, int) or None
        First and last class affected by noise or under-sampling; None for all classes, and for the kinds
        ``clean`` and ``few``.
    rate : float or None
        Noise rate or sampling rate; None for ``clean`` and ``few``.
    per_class : int or None
        Training rows of each class for ``few``; None for other kinds.
    seed : int
        Determines the split, the corruption, the initial weights, the order of the data and the augmentation.
    network : str
        Key of ``networks.NETWORKS``.
    recipe : str
        Key of ``RECIPES``: optimiser and learning rates.
    epochs, batch_size : int
        Number of epochs, and number of rows per training step. The learning-rate drops scale with the number
        of epochs.
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
        """Raise an error if the corruption or the recipe is invalid."""
        _check_corruption(self)
        _check_recipe(self)

    @property
    def n_classes(self) -> int:
        """Number of classes of the data set."""
        return _DEFAULTS[self.data][2]

    @property
    def name(self) -> str:
        """Canonical name, such as ``c10-noise-0-4-r0.30-s0``, with a suffix for every non-default setting."""
        affected = "all" if self.classes is None else f"{self.classes[0]}-{self.classes[1]}"
        corruption = {
            "clean": "clean",
            "noise": f"noise-{affected}-r{_plain(self.rate)}",
            "under": f"under-{affected}-r{_plain(self.rate)}",
            "few": f"few-n{self.per_class}",
        }[self.kind]
        return "-".join([self.data, corruption, f"s{self.seed}", *_suffixes(self)])

    @property
    def schedule(self) -> tuple[tuple[int, float], ...]:
        """Pairs ``(first epoch, learning rate)``, one for each phase that has epochs. Epochs count from 1."""
        recipe = RECIPES[self.recipe]
        starts = [1, *(round(fraction * self.epochs) + 1 for fraction in recipe.drops)]
        # In very short runs, phases can start in the same epoch (the last one counts) or after the end.
        rates = dict(zip(starts, recipe.rates, strict=True))
        return tuple((start, rate) for start, rate in rates.items() if start <= self.epochs)

    @property
    def choice(self) -> str:
        """Choice of epoch that represents the run.

        It is ``early`` if the recipe has early stopping, and ``best`` otherwise.
        """
        return "early" if RECIPES[self.recipe].patience else "best"

    def early_stop(self, val_accuracy: Sequence[float]) -> tuple[int, bool]:
        """Apply early stopping to a history of validation accuracies.

        Returns
        -------
        best : int
            Epoch with the best accuracy before training would stop, counted from 1; the first one if several
            are equally good.
        stopped : bool
            Whether training would have stopped; False if the recipe has no early stopping.
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
    """Settings of a run that replace its defaults.

    `network` and `recipe` replace those of the data set, and the other settings those of the recipe.
    """

    network: str
    recipe: str
    epochs: int
    batch_size: int
    weight_decay: float


def clean(data: str, seed: int, **options: Unpack[Options]) -> Run:
    """Create a run with all rows outside the validation set, without corruption."""
    return _make(data, "clean", seed, **options)


def noise(
    data: str, classes: tuple[int, int] | None, rate: float, seed: int, **options: Unpack[Options]
) -> Run:
    """Create a run in which training labels of ``classes`` are redrawn with probability ``rate``.

    ``classes`` contains the first and the last class, or is None for all classes. Rate 0 gives :func:`clean`.
    """
    if rate == 0:
        return clean(data, seed, **options)
    return _make(data, "noise", seed, classes=classes, rate=rate, **options)


def under(
    data: str, classes: tuple[int, int] | None, rate: float, seed: int, **options: Unpack[Options]
) -> Run:
    """Create a run with a fraction ``rate`` of the rows of ``classes`` and all rows of the other classes.

    ``classes`` contains the first and the last class, or is None for all classes. Rate 1 gives :func:`clean`.
    """
    if rate == 1:
        return clean(data, seed, **options)
    return _make(data, "under", seed, classes=classes, rate=rate, **options)


def sample(data: str, rate: float, seed: int, **options: Unpack[Options]) -> Run:
    """Create a run with a fraction ``rate`` of the rows of every class; rate 1 gives :func:`clean`."""
    return under(data, None, rate, seed, **options)


def few(data: str, per_class: int, seed: int, **options: Unpack[Options]) -> Run:
    """Create a run with ``per_class`` training rows of every class."""
    return _make(data, "few", seed, per_class=per_class, **options)


def with_default_recipe(run: Run) -> Run:
    """Return the run with the same seed and training rows, and the default recipe of the data set."""
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
            f'name must look like c10-noise-0-4-r0.30-s0, got "{name}"; '
            "`hetcal train --pending` lists the names of missing runs"
        )
    parts = {key: value for key, value in match.groupdict().items() if value is not None}
    first, last = parts.pop("first", None), parts.pop("last", None)
    data, seed = parts.pop("data"), int(parts.pop("seed"))
    kind = parts.pop("kind", "few" if "per_class" in parts else "clean")
    options: dict[str, Any] = {key: _TYPES.get(key, str)(value) for key, value in parts.items()}
    if first is not None and last is not None:
        options["classes"] = (int(first), int(last))
    run = _make(data, kind, seed, **options)
    if run.name != name:
        raise ValueError(f'name must be canonical, got "{name}"; write "{run.name}"')
    return run


def paper_grid() -> dict[str, tuple[Run, ...]]:
    """Map the name of each table and figure to its runs with all five seeds, ordered by seed."""
    by_seed = [_points(seed) for seed in SEEDS]
    return {name: tuple(run for points in by_seed for run in points[name]) for name in by_seed[0]}


def runs_for(name: str) -> tuple[Run, ...]:
    """Return the runs behind one table or figure."""
    grid = paper_grid()
    if name not in grid:
        raise ValueError(f'name must be one of {", ".join(grid)}, got "{name}"; check the spelling')
    return grid[name]


def items_of(name: str) -> frozenset[str]:
    """Return the names of the tables and figures that use the run with this name; may be empty."""
    return _items_by_run().get(name, frozenset())


@cache
def _items_by_run() -> dict[str, frozenset[str]]:
    items: dict[str, set[str]] = {}
    for item, runs in paper_grid().items():
        for run in runs:
            items.setdefault(run.name, set()).add(item)
    return {name: frozenset(used_in) for name, used_in in items.items()}


#: Settings of the runs of fig5 and fig8. With WideResNet-28-10, all these runs together would take about ten
#: hours on one H200.
_SHORT: Options = {"network": "resnet20", "recipe": "adam", "epochs": 100}


def _points(seed: int) -> dict[str, tuple[Run, ...]]:
    """Return the runs behind each table and figure, for one seed."""
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
_TYPES = {"per_class": int, "rate": float, "epochs": int, "batch_size": int, "weight_decay": float}


def _make(data: str, kind: str, seed: int, **settings: Any) -> Run:
    """Create a run; settings that are not given have the defaults of the data set and recipe."""
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
        values["classes"] = None  # None also means all classes, and equal runs must have equal names
    return Run(data=data, kind=kind, seed=seed, **values)


def _suffixes(run: Run) -> list[str]:
    """Return the parts of the name for the settings that differ from the defaults."""
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
    has_rate = run.kind in ("noise", "under")
    if has_rate != (run.rate is not None) or (run.kind == "few") != (run.per_class is not None):
        raise ValueError(
            f"kind must agree with rate and per_class, got {run.kind} with rate {run.rate} and per_class "
            f"{run.per_class}; create runs with clean, noise, under, sample or few"
        )
    if run.rate is not None and not (0 < run.rate <= 1 and (run.kind == "noise" or run.rate < 1)):
        raise ValueError(
            f"rate must be in (0, 1], and below 1 for under-sampling, got {run.rate}; "
            f"for clean data, use clean or the name {run.data}-clean-s{run.seed}"
        )
    if run.per_class is not None and run.per_class < 1:
        raise ValueError(f"per_class must be 1 or more, got {run.per_class}; keep at least one row")
    n_classes = _DEFAULTS[run.data][2]
    if run.classes is not None and not (has_rate and 0 <= run.classes[0] <= run.classes[1] < n_classes):
        raise ValueError(
            "classes must be None or, for noise and under-sampling, a pair of first and last class within "
            f"0..{n_classes - 1}, got {run.classes} for {run.kind}; pass None for all classes"
        )


def _check_recipe(run: Run) -> None:
    """Check the recipe, the seed and the numeric settings."""
    _check_choice("recipe", run.recipe, RECIPES)
    for field, least in (("seed", 0), ("epochs", 1), ("batch_size", 2), ("weight_decay", 0)):
        value = getattr(run, field)
        if not value >= least:
            raise ValueError(f"{field} must be {least} or more, got {value}; pass a larger value")


def _check_choice(argument: str, value: str, choices: Any) -> None:
    if value not in choices:
        raise ValueError(f'{argument} must be one of {", ".join(choices)}, got "{value}"; check the spelling')
