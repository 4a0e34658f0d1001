"""Reproduce the tables and figures of the paper from our results.

``reproduce("table2")`` reads the result files and takes seconds; it needs neither a GPU nor CIFAR. With
``train=True`` it trains missing runs first, which needs CIFAR and takes very long without a GPU.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hetcal_paper import claims, figures, rows, tables
from hetcal_paper.claims import Claim
from hetcal_paper.figures import save_figure
from hetcal_paper.files import write_text
from hetcal_paper.published import ITEMS, NAMES
from hetcal_paper.queue import train_missing
from hetcal_paper.results import Results, read_results, summarise, summarised
from hetcal_paper.rows import Row, Selection, select
from hetcal_paper.runs import runs_for
from hetcal_paper.tables import claims_to_markdown, differences

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "NAMES",
    "MissingRunsError",
    "Reproduction",
    "complete_results",
    "find_results",
    "reproduce",
    "reproduce_from",
    "reproduce_many",
]

_LOG = logging.getLogger(__name__)
_VARIABLE = "HETCAL_RESULTS"
_DEFAULT = "paper/results"
_CLAIM_KEYS = ("text", "holds", "evidence")


@dataclass(frozen=True)
class _Kind:
    """How tables and figures of one kind are computed, checked, tabulated and drawn."""

    rows: Callable[[Selection], list[Row]]
    claims: Callable[[str, Sequence[Row]], Iterable[Claim]]
    tables: Callable[[str, Sequence[Row]], list[str]]
    figure: Callable[[str, Sequence[Row], Selection | None], Figure]


_KINDS: dict[str, _Kind] = {
    "table": _Kind(rows.table_rows, claims.table_claims, tables.method_tables, figures.table_figure),
    "trainings": _Kind(
        rows.training_rows, claims.training_claims, tables.training_tables, figures.training_figure
    ),
    "sampling": _Kind(
        rows.sampling_rows, claims.sampling_claims, tables.sampling_tables, figures.sampling_figure
    ),
    "halves": _Kind(rows.half_rows, claims.half_claims, tables.half_tables, figures.half_figure),
    "noise": _Kind(rows.sweep_rows, claims.noise_claims, tables.sweep_tables, figures.sweep_figure),
    "size": _Kind(rows.sweep_rows, claims.size_claims, tables.sweep_tables, figures.sweep_figure),
    "classes": _Kind(rows.class_rows, claims.class_claims, tables.class_tables, figures.class_figure),
    "example": _Kind(
        lambda _: rows.example_rows(), claims.example_claims, tables.example_tables, figures.example_figure
    ),
}


class MissingRunsError(ValueError):
    """Raised if the results contain no runs for a table or figure."""


@dataclass(frozen=True, eq=False)
class Reproduction:
    """One reproduced table or figure, or the example of Section 5.4.

    Attributes
    ----------
    name, title : str
    rows : tuple of dict
        The numbers; see :mod:`hetcal_paper.rows`.
    claims : tuple of Claim
        The claims of the paper, and whether our results support them.
    missing : tuple of str
        Names of the runs that the results lack.
    choice : str
        Which epoch represents each run, such as ``best``; see :func:`reproduce`. ``none`` for the example.
    selection : Selection or None
        The runs behind the table or figure; None for the example, which has no runs.
    """

    name: str
    title: str
    rows: tuple[Row, ...]
    claims: tuple[Claim, ...]
    missing: tuple[str, ...]
    choice: str
    selection: Selection | None = field(default=None, repr=False)

    @property
    def uses_default_recipe(self) -> bool:
        """Whether all runs of this figure are missing, so that runs with the default recipe replace them."""
        return self.selection is not None and len(self.missing) == len(runs_for(self.name))

    def figure(self) -> Figure:
        """Draw the figure; needs matplotlib."""
        return _KINDS[ITEMS[self.name].kind].figure(self.name, self.rows, self.selection)

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes except ``selection`` as JSON-compatible values.

        A claim is a dictionary with the keys ``text``, ``holds`` and ``evidence``.
        """
        return {
            "name": self.name,
            "title": self.title,
            "choice": self.choice,
            "rows": [dict(row) for row in self.rows],
            "claims": [{key: getattr(claim, key) for key in _CLAIM_KEYS} for claim in self.claims],
            "missing": list(self.missing),
        }

    def to_markdown(self) -> str:
        """Return Markdown: a heading, tables with our numbers and those of the paper, and the claims."""
        return f"## {self.name}: {self.title}\n\n{self.body()}\n"

    def body(self) -> str:
        """Return the Markdown of :meth:`to_markdown` without the heading."""
        parts = [
            f"The paper: {ITEMS[self.name].paper}",
            *_KINDS[ITEMS[self.name].kind].tables(self.name, self.rows),
            differences(self.rows),
            claims_to_markdown(self.claims),
            self.how_to_complete(),
        ]
        return "\n\n".join(part for part in parts if part)

    def save(self, folder: str | Path) -> Path:
        """Write ``NAME.md``, ``NAME.json`` and ``NAME.svg`` to a folder, which is created if needed.

        Return the path of the Markdown file.
        """
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        page = target / f"{self.name}.md"
        write_text(page, f"{self.to_markdown()}\n![{self.title}]({self.name}.svg)\n")
        write_text(target / f"{self.name}.json", json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n")
        save_figure(self.figure(), target / f"{self.name}.svg")
        return page

    def how_to_complete(self) -> str:
        """Describe which runs are missing and how to train them; empty if none are missing."""
        if not self.missing:
            return ""
        n = len(runs_for(self.name))
        text = (
            f"Runs: {n - len(self.missing)} of {n}. Missing: {_shorten(self.missing)}. "
            f"Train the missing runs with `hetcal reproduce {self.name} --train`."
        )
        if not self.uses_default_recipe:
            return text
        return f"{text} Until then, runs with the default recipe replace them where such runs exist."


def reproduce(
    name: str,
    results_dir: str | Path | None = None,
    *,
    choice: str | None = None,
    train: bool = False,
    data_dir: str | Path | None = None,
    store_dir: str | Path = "runs",
    **options: Any,
) -> Reproduction:
    """Reproduce a table or figure of the paper from our results.

    Parameters
    ----------
    name : str
        ``table1``, ``table2``, ``fig1`` to ``fig14`` or ``example``.
    results_dir : path, optional
        See :func:`find_results`.
    choice : str, optional
        The epoch that represents a run: ``best`` (best validation accuracy), ``early`` (the same with early
        stopping), ``phase1``, ``phase2``, ... (best of a learning-rate phase) or ``last``. The default is
        ``early`` for recipes with early stopping, such as the default recipe of CIFAR-100, and ``best``
        otherwise.
    train : bool
        Whether to train missing runs.
    data_dir, store_dir, **options
        For training, see :func:`complete_results`.

    Returns
    -------
    Reproduction

    Examples
    --------
    >>> example = reproduce("example")
    >>> [(row["method"], row["mean"], row["paper"]) for row in example.rows if row["metric"] == "ece"]
    [('TS', 0.0, 0.0), ('CTS', 0.02, 0.02)]
    """
    _check(name)
    if train:
        results_dir = complete_results([name], results_dir, data_dir=data_dir, store_dir=store_dir, **options)
    elif options:
        raise TypeError(f"options must be omitted without train, got {', '.join(options)}; pass train=True")
    if ITEMS[name].data is None:
        return _example(name)
    return reproduce_from(read_results(find_results(results_dir, name)), name, choice=choice)


def reproduce_many(
    name: str,
    results_dir: str | Path | None = None,
    *,
    train: bool = False,
    data_dir: str | Path | None = None,
    store_dir: str | Path = "runs",
    **options: Any,
) -> list[Reproduction]:
    """Reproduce one table or figure or, if the name is ``"all"``, all of them; return them as a list.

    With ``"all"``, tables and figures without runs are left out and a warning names them. The parameters are
    those of :func:`reproduce`, but ``"all"`` cannot be combined with `choice`.
    """
    if name != "all":
        training: dict[str, Any] = {"data_dir": data_dir, "store_dir": store_dir, **options}
        return [reproduce(name, results_dir, train=train, **training)]
    choice = options.pop("choice", None)
    if choice is not None:
        raise ValueError(
            f'choice must be left out with "all", got {choice!r}; reproduce the tables and figures one by one'
        )
    if options and not train:
        raise TypeError(f"options must be omitted without train, got {', '.join(options)}; pass train=True")
    if train:
        results_dir = complete_results(NAMES, results_dir, data_dir=data_dir, store_dir=store_dir, **options)
    results = read_results(find_results(results_dir, name))
    items, missing = [], []
    for item in NAMES:
        try:
            items.append(reproduce_from(results, item))
        except MissingRunsError:
            missing.append(item)
    if missing:
        text = "no runs for %s; train them with `hetcal reproduce all --train`"
        _LOG.warning(text, ", ".join(missing))
    return items


def reproduce_from(results: Results, name: str, *, choice: str | None = None) -> Reproduction:
    """Reproduce a table or figure from results that are already open; see :func:`reproduce`."""
    _check(name)
    item = ITEMS[name]
    if item.data is None:
        return _example(name)
    selection = select(name, results, choice)
    if not selection.present:
        raise MissingRunsError(
            f"results must contain runs of {name}, got none of {_shorten(selection.missing)} in "
            f"{str(results.folder)!r}; train them with `hetcal reproduce {name} --train`"
        )
    kind = _KINDS[item.kind]
    numbers = tuple(kind.rows(selection))
    checked = tuple(kind.claims(name, numbers))
    return Reproduction(name, item.title, numbers, checked, selection.missing, selection.choice, selection)


def find_results(folder: str | Path | None = None, name: str = "NAME") -> Path:
    """Return the folder of results: the argument, else ``$HETCAL_RESULTS``, else ``paper/results``.

    If the folder has no ``runs.csv``, an error is raised. One remedy that it suggests is to train the runs of
    a table or figure, whose name is ``name``.
    """
    path = _results_folder(folder)
    if not (path / "runs.csv").is_file():
        raise FileNotFoundError(
            f"results must be a folder with runs.csv, got {str(path)!r}; pass --results DIR or set "
            f"${_VARIABLE} to the folder {_DEFAULT} of the repository, or train with "
            f"`hetcal reproduce {name} --train`"
        )
    return path


def complete_results(
    names: Sequence[str],
    results_dir: str | Path | None = None,
    *,
    data_dir: str | Path | None = None,
    store_dir: str | Path = "runs",
    **options: Any,
) -> Path:
    """Train the missing runs of these tables and figures, and add them to the results.

    All finished runs in the folder `store_dir` are added without being trained again.

    Parameters
    ----------
    names : sequence of str
        Tables and figures.
    results_dir : path, optional
        As in :func:`find_results`; created if needed.
    data_dir : path, optional
        Folder with CIFAR; None for ``$HETCAL_DATA``.
    store_dir : path
        The store for finished runs.
    **options
        Passed to :func:`hetcal_paper.queue.train_missing`.

    Returns
    -------
    Path
        The folder of results.
    """
    for name in names:
        _check(name)
    folder = _results_folder(results_dir)
    summarise(store_dir, folder)
    present = summarised(folder)
    needed = dict.fromkeys(run.name for name in names if ITEMS[name].data for run in runs_for(name))
    missing = [name for name in needed if name not in present]
    if missing:
        train_missing(missing, data_dir, store_dir, **options)
        summarise(store_dir, folder)
    return folder


def _example(name: str) -> Reproduction:
    numbers = rows.example_rows()
    checked = claims.example_claims(name, numbers)
    return Reproduction(name, ITEMS[name].title, tuple(numbers), tuple(checked), (), "none")


def _results_folder(folder: str | Path | None) -> Path:
    return Path(folder or os.environ.get(_VARIABLE) or _DEFAULT)


def _check(name: str) -> None:
    if name not in ITEMS:
        raise ValueError(f"name must be one of {', '.join(NAMES)}, got {name!r}; check the spelling")


def _shorten(names: Sequence[str], limit: int = 6) -> str:
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"
