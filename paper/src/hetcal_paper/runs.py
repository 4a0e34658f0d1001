"""The paper's grid of training runs, in plain Python.

A :class:`Run` is a frozen description of one training: data set, corruption, seed and recipe. Its
name is canonical (equal runs have equal names) and can be parsed back, so a name is all that the
command line and the result files need.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from decimal import Decimal
from pathlib import Path
from typing import Any, TypedDict, Unpack

from hetcal_paper import store as result_store
from hetcal_paper.recipes import RECIPES, Recipe

__all__ = [
    "RECIPES",
    "SEEDS",
    "Recipe",
    "Run",
    "clean",
    "few",
    "noise",
    "paper_grid",
    "parse",
    "pending",
    "runs_for",
    "sample",
    "under",
    "usual",
]

SEEDS = (0, 1, 2, 3, 4)


@dataclass(frozen=True)
class Run:
    """One training, described completely.

    Make runs with :func:`clean`, :func:`noise`, :func:`under`, :func:`sample`, :func:`few` or
    :func:`parse`, which fill in the paper's recipe.

    Attributes
    ----------
    data : {"c10", "c100"}
        Data set.
    kind : {"clean", "noise", "under", "few"}
        What is done to the training rows: nothing; labels redrawn with probability ``rate``; a
        share ``rate`` of the rows kept; ``per_class`` rows of each class kept.
    classes : (int, int) or None
        First and last class that noise or under-sampling applies to; None means all.
    rate : float or None
        Noise rate, or share of rows kept.
    per_class : int or None
        Rows kept of each class.
    seed : int
        Decides the split, the corruption, the initial weights and the order of the data.
    network : str
        Key of ``models.NETWORKS``.
    recipe : str
        Key of ``RECIPES``; gives the optimiser and its learning rates.
    epochs, batch_size : int
        Length and batch size. The drops of the learning rate scale with the length.
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
        """Refuse what could not be trained or named."""
        _check_corruption(self)
        _check_recipe(self)

    @property
    def n_classes(self) -> int:
        """Number of classes of the data set."""
        return _DEFAULTS[self.data][2]

    @property
    def name(self) -> str:
        """Canonical name, such as ``c10-noise-0-4-r0.30-s0``; departures from the recipe follow."""
        where = "all" if self.classes is None else f"{self.classes[0]}-{self.classes[1]}"
        what = {
            "clean": "clean",
            "noise": f"noise-{where}-r{_plain(self.rate)}",
            "under": f"under-{where}-r{_plain(self.rate)}",
            "few": f"few-n{self.per_class}",
        }[self.kind]
        return "-".join([self.data, what, f"s{self.seed}", *_departures(self)])

    @property
    def schedule(self) -> tuple[tuple[int, float], ...]:
        """``(first epoch, learning rate)`` of each phase, epochs counted from 1."""
        recipe = RECIPES[self.recipe]
        starts = [1, *(round(share * self.epochs) + 1 for share in recipe.drops)]
        # In very short runs drops may coincide, or come after the end: the last rate counts.
        rates = dict(zip(starts, recipe.rates, strict=True))
        return tuple((start, rate) for start, rate in rates.items() if start <= self.epochs)

    @property
    def choice(self) -> str:
        """The epoch that stands for the run: ``best`` validation accuracy, ``early`` if it stops early."""
        return "early" if RECIPES[self.recipe].patience else "best"

    def early_stop(self, val_accuracy: Sequence[float]) -> tuple[int, bool]:
        """Return the best epoch (from 1; the first of equals) before patience ends, and whether it has."""
        patience, best = round(RECIPES[self.recipe].patience * self.epochs), 0
        for at, accuracy in enumerate(val_accuracy):
            if accuracy > val_accuracy[best]:
                best = at
            elif patience and at - best >= patience:
                return best + 1, True
        return best + 1, False

    def phase(self, epoch: int) -> tuple[int, float]:
        """Return number (from 1) and learning rate of the phase that an epoch belongs to."""
        begun = [rate for first, rate in self.schedule if first <= epoch]
        return len(begun), begun[-1]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, in a form that JSON can hold."""
        return {key: list(v) if isinstance(v, tuple) else v for key, v in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Run:
        """Make a run from :meth:`to_dict`'s result."""
        wanted = {field.name for field in fields(cls)}
        if values.keys() != wanted:
            odd = ", ".join(sorted(values.keys() ^ wanted))
            raise ValueError(f"values must have the fields of a run, got {odd} missing or extra; use to_dict")
        classes = values["classes"]
        return cls(**{**values, "classes": None if classes is None else (int(classes[0]), int(classes[1]))})


class Options(TypedDict, total=False):
    """Departures from the paper's recipe."""

    network: str
    recipe: str
    epochs: int
    batch_size: int
    weight_decay: float


def clean(data: str, seed: int, **options: Unpack[Options]) -> Run:
    """Train on all rows that the validation set leaves, as they are."""
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
    """Keep a share ``rate`` of the rows of ``classes``; rate 1 is :func:`clean`."""
    if rate == 1:
        return clean(data, seed, **options)
    return _make(data, "under", seed, classes=classes, rate=rate, **options)


def sample(data: str, rate: float, seed: int, **options: Unpack[Options]) -> Run:
    """Keep a share ``rate`` of the rows of every class; rate 1 is :func:`clean`."""
    return under(data, None, rate, seed, **options)


def few(data: str, per_class: int, seed: int, **options: Unpack[Options]) -> Run:
    """Keep ``per_class`` training rows of every class."""
    return _make(data, "few", seed, per_class=per_class, **options)


def usual(run: Run) -> Run:
    """Return the run with the same training rows and the recipe that belongs to the data set."""
    rows = {"classes": run.classes, "rate": run.rate, "per_class": run.per_class}
    return _make(run.data, run.kind, run.seed, **rows)


def parse(name: str) -> Run:
    """Make the run that has this name.

    Examples
    --------
    >>> parse("c10-noise-0-4-r0.30-s0") == noise("c10", (0, 4), 0.3, seed=0)
    True
    >>> parse("c100-clean-s1-e60-wd0.0001").epochs
    60
    """
    found = _NAME.fullmatch(name)
    if found is None:
        raise ValueError(
            f'name must look like c10-noise-0-4-r0.30-s0, got "{name}"; list names with runs_for("table2")'
        )
    part = {key: value for key, value in found.groupdict().items() if value is not None}
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
    """Return the runs behind every trained table and figure, five seeds each, seed by seed."""
    by_seed = [_points(seed) for seed in SEEDS]
    return {name: tuple(run for points in by_seed for run in points[name]) for name in by_seed[0]}


def runs_for(name: str) -> tuple[Run, ...]:
    """Return the runs behind one table or figure."""
    grid = paper_grid()
    if name not in grid:
        raise ValueError(f'name must be one of {", ".join(grid)}, got "{name}"; see paper_grid')
    return grid[name]


def pending(store: str | Path) -> list[Run]:
    """Return the runs of the grid that the store lacks, each once, in order of worth.

    First the table with all seeds, then the figures, every point with seed 0 before any with
    seed 1; CIFAR-10 before CIFAR-100.
    """
    done = result_store.finished(store)
    grid = paper_grid()
    ordered: dict[str, Run] = {}
    for table, figures in _WORTH.items():
        runs = list(grid[table])
        for seed in SEEDS:
            runs += [run for figure in figures for run in grid[figure] if run.seed == seed]
        ordered.update((run.name, run) for run in runs if run.name not in ordered)
    return [run for name, run in ordered.items() if name not in done]


#: What to train first: a table with all its seeds, then figures point by point.
_WORTH = {
    "table2": ("fig10", "fig12", "fig13", "fig14", "fig9"),
    "table1": ("fig4", "fig7", "fig1", "fig2", "fig5", "fig8"),
}


#: CIFAR-100's sweeps: CIFAR-10's network, for half as long. WideResNet-28-10 would take a GPU ten hours.
_SHORT: Options = {"network": "resnet20", "recipe": "adam", "epochs": 100}


def _points(seed: int) -> dict[str, tuple[Run, ...]]:
    """Return the runs of one seed behind each table and figure."""
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


#: Network, recipe and number of classes that belong to each data set.
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


def _make(data: str, kind: str, seed: int, **given: Any) -> Run:
    """Fill in what belongs to the data set and the recipe."""
    _check_among("data", data, _DEFAULTS)
    network, recipe, n_classes = _DEFAULTS[data]
    recipe = given.get("recipe", recipe)
    _check_among("recipe", recipe, RECIPES)
    usual = RECIPES[recipe]
    values = {
        "classes": None,
        "rate": None,
        "per_class": None,
        "network": network,
        "recipe": recipe,
        "epochs": usual.epochs,
        "batch_size": usual.batch_size,
        "weight_decay": usual.weight_decay,
    } | given
    if values["classes"] == (0, n_classes - 1):
        values["classes"] = None  # one name for one run
    return Run(data=data, kind=kind, seed=seed, **values)


def _departures(run: Run) -> list[str]:
    """Name parts for everything that is not the usual recipe of the data set."""
    network, recipe, _ = _DEFAULTS[run.data]
    usual = RECIPES[run.recipe]
    parts = {
        f"net_{run.network}": run.network != network,
        f"opt_{run.recipe}": run.recipe != recipe,
        f"e{run.epochs}": run.epochs != usual.epochs,
        f"b{run.batch_size}": run.batch_size != usual.batch_size,
        f"wd{_plain(run.weight_decay)}": run.weight_decay != usual.weight_decay,
    }
    return [part for part, departs in parts.items() if departs]


def _plain(value: float | None) -> str:
    """Write a number without exponent, with two decimals or as many as it takes."""
    exact = Decimal(repr(value or 0.0))
    return max(f"{exact:.2f}", f"{exact:f}", key=len)


def _check_corruption(run: Run) -> None:
    """Refuse a corruption that is not one, or has parameters of another kind."""
    _check_among("data", run.data, _DEFAULTS)
    _check_among("kind", run.kind, ("clean", "noise", "under", "few"))
    sweeps = run.kind in ("noise", "under")
    if sweeps != (run.rate is not None) or (run.kind == "few") != (run.per_class is not None):
        raise ValueError(
            f"kind must agree with rate and per_class, got {run.kind} with rate {run.rate} and per_class "
            f"{run.per_class}; make runs with clean, noise, under, sample or few"
        )
    if run.rate is not None and not (0 < run.rate <= 1 and (run.kind == "noise" or run.rate < 1)):
        raise ValueError(f"rate must be in (0, 1], got {run.rate}; for rate 1 of under-sampling use clean")
    if run.per_class is not None and run.per_class < 1:
        raise ValueError(f"per_class must be 1 or more, got {run.per_class}; keep at least one row")
    n_classes = _DEFAULTS[run.data][2]
    if run.classes is not None and not (sweeps and 0 <= run.classes[0] <= run.classes[1] < n_classes):
        raise ValueError(
            f"classes must be first and last of 0..{n_classes - 1}, for noise or under-sampling only, "
            f"got {run.classes} with {run.kind}; pass None for all"
        )


def _check_recipe(run: Run) -> None:
    """Refuse numbers that training could not use."""
    _check_among("recipe", run.recipe, RECIPES)
    for field, least in (("seed", 0), ("epochs", 1), ("batch_size", 2), ("weight_decay", 0)):
        value = getattr(run, field)
        if not value >= least:
            raise ValueError(f"{field} must be {least} or more, got {value}; see RECIPES for usual values")


def _check_among(argument: str, value: str, choices: Any) -> None:
    """Refuse a word that is not in the list."""
    if value not in choices:
        raise ValueError(f'{argument} must be one of {", ".join(choices)}, got "{value}"; check the spelling')
