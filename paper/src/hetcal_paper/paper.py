"""The paper's tables and figures from our own runs: rows, Markdown and picture of each.

``reproduce("table2")`` works from the small result files in seconds, without a GPU or data; with
``train=True`` it trains the runs that are missing first.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from hetcal._write import write_atomic
from hetcal_paper.missing import train_missing
from hetcal_paper.paper_claims import Claim, check_claims
from hetcal_paper.paper_figures import draw, save_figure
from hetcal_paper.paper_numbers import ITEMS, NAMES
from hetcal_paper.paper_rows import Row, Selection, example_rows, make_rows, select
from hetcal_paper.paper_tables import claims_to_markdown, differences, rows_to_markdown
from hetcal_paper.results import Results, read_results, summarise
from hetcal_paper.runs import runs_for

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
_CLAIM_KEYS = ("text", "holds", "evidence")


class MissingRunsError(ValueError):
    """None of the runs behind a table or figure is in the results."""


@dataclass(frozen=True, eq=False)
class Reproduction:
    """One table or figure, ours beside the paper's.

    Attributes
    ----------
    name, title : str
    rows : tuple of dict
        ``method``, ``metric``, ``bins``, ``mean``, ``std``, ``n`` (seeds), ``floor``, ``paper``, and where
        they apply ``rate``, ``half``, ``training``, ``class``; fractions. See
        :mod:`hetcal_paper.paper_rows`.
    claims : tuple of Claim
        What the paper says of it, and whether it holds here.
    missing : tuple of str
        Runs of the paper's grid that the results lack.
    choice : str
        The epoch whose logits stand for a run.
    """

    name: str
    title: str
    rows: tuple[Row, ...]
    claims: tuple[Claim, ...]
    missing: tuple[str, ...]
    choice: str
    selection: Selection | None = field(default=None, repr=False)

    @property
    def has_stand_ins(self) -> bool:
        """Whether none of its own runs is there and runs of the usual recipe take their place."""
        return self.selection is not None and len(self.missing) == len(runs_for(self.name))

    def figure(self) -> Figure:
        """Draw it; needs matplotlib."""
        return draw(self.name, self.rows, self.selection)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain Python values, ready for JSON."""
        return {
            "name": self.name,
            "title": self.title,
            "choice": self.choice,
            "rows": [dict(row) for row in self.rows],
            "claims": [{key: getattr(claim, key) for key in _CLAIM_KEYS} for claim in self.claims],
            "missing": list(self.missing),
        }

    def to_markdown(self) -> str:
        """Tables that set ours beside the paper's, in per cent, and the paper's claims."""
        parts = [
            f"## {self.name}: {self.title}",
            f"The paper: {ITEMS[self.name].paper}",
            rows_to_markdown(self.name, self.rows),
            differences(self.rows),
            claims_to_markdown(self.claims),
            self.how_to_complete(),
        ]
        return "\n\n".join(part for part in parts if part) + "\n"

    def save(self, folder: str | Path) -> Path:
        """Write ``NAME.md``, ``NAME.json`` and ``NAME.svg`` into a folder, made where there is none.

        Returns the first of them; the Markdown shows the picture.
        """
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        page = target / f"{self.name}.md"
        texts = {
            page: f"{self.to_markdown()}\n![{self.title}]({self.name}.svg)\n",
            target / f"{self.name}.json": json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n",
        }
        for path, text in texts.items():
            write_atomic(path, partial(_write, text=text))
        save_figure(self.figure(), target / f"{self.name}.svg")
        return page

    def how_to_complete(self) -> str:
        """Say which runs are missing and how to train them; nothing if all are there."""
        if not self.missing:
            return ""
        n = len(runs_for(self.name))
        have = n - len(self.missing)
        text = (
            f"Runs: {have} of {n}. Missing: {_some(self.missing)}. "
            f"Train them with `hetcal reproduce {self.name} --train`."
        )
        stand_in = " Until then, runs of the usual recipe stand in, at the points that other figures need."
        return text if have else text + stand_in


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
    """Make a table or figure of the paper from our runs.

    Parameters
    ----------
    name : str
        ``table1``, ``table2``, ``fig1`` to ``fig14`` or ``example``.
    results_dir : path, optional
        See :func:`find_results`.
    choice : str, optional
        The epoch that stands for a run: ``best`` validation accuracy (default on CIFAR-10), the same with
        ``early`` stopping (default on CIFAR-100, its sweeps aside), the best of a learning-rate phase
        (``phase1``, ...), or ``last``.
    train : bool
        Whether to train runs that are missing.
    data_dir, store_dir, **options
        For training, see :func:`complete_results`.

    Examples
    --------
    >>> made = reproduce("example")
    >>> [(row["method"], row["mean"], row["paper"]) for row in made.rows if row["metric"] == "ece"]
    [('TS', 0.0, 0.0), ('CTS', 0.02, 0.02)]
    """
    _check(name)
    if train:
        results_dir = complete_results([name], results_dir, data_dir=data_dir, store_dir=store_dir, **options)
    elif options:
        raise TypeError(f"options must be left out without train, got {', '.join(options)}")
    if ITEMS[name].data is None:
        rows = example_rows()
        return Reproduction(name, ITEMS[name].title, tuple(rows), check_claims(name, rows), (), "none")
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
    """:func:`reproduce` one table or figure, or with ``"all"`` every one that has runs.

    Those that have none are named in a warning of the log.
    """
    if name != "all":
        training: dict[str, Any] = {"data_dir": data_dir, "store_dir": store_dir, **options}
        return [reproduce(name, results_dir, train=train, **training)]
    if train:
        results_dir = complete_results(NAMES, results_dir, data_dir=data_dir, store_dir=store_dir, **options)
    results = read_results(find_results(results_dir, name))
    made, absent = [], []
    for each in NAMES:
        try:
            made.append(reproduce_from(results, each))
        except MissingRunsError:
            absent.append(each)
    if absent:
        text = "left out for want of runs: %s; train them with `hetcal reproduce all --train`"
        _LOG.warning(text, ", ".join(absent))
    return made


def reproduce_from(results: Results, name: str, *, choice: str | None = None) -> Reproduction:
    """:func:`reproduce` from results that are open already."""
    _check(name)
    item = ITEMS[name]
    if item.data is None:
        return reproduce(name)
    selection = select(name, results, choice)
    if not selection.present:
        raise MissingRunsError(
            f"results must hold runs of {name}, got none in {str(results.folder)!r}: "
            f"{_some(selection.missing)}; train them with `hetcal reproduce {name} --train`, or with "
            f"`hetcal train {name}` in parts"
        )
    rows = make_rows(selection)
    claims = check_claims(name, rows)
    return Reproduction(name, item.title, tuple(rows), claims, selection.missing, selection.choice, selection)


def find_results(folder: str | Path | None = None, name: str = "NAME") -> Path:
    """Return the folder of results: the given one, ``$HETCAL_RESULTS``, or ``./results``.

    ``name`` is for the message if there is none.
    """
    tried = Path(folder or os.environ.get(_VARIABLE) or "paper/results")
    if not (tried / "runs.csv").is_file():
        raise FileNotFoundError(
            f"results must be a folder with runs.csv, got {str(tried)!r}; pass --results DIR or set "
            f"${_VARIABLE} to the folder 'results' of a checkout, or train with "
            f"`hetcal reproduce {name} --train`"
        )
    return tried


def complete_results(
    names: Sequence[str],
    results_dir: str | Path | None = None,
    *,
    data_dir: str | Path | None = None,
    store_dir: str | Path = "runs",
    **options: Any,
) -> Path:
    """Train what the results lack for these tables and figures, and add it to them.

    Runs that the store holds are not trained again.

    Parameters
    ----------
    names : tables and figures
    results_dir : path, optional
        As in :func:`find_results`, made where there is none.
    data_dir : path, optional
        Folder with CIFAR; None for ``$HETCAL_DATA``.
    store_dir : path
        For the raw runs.
    **options
        Of :func:`hetcal_paper.train.train_runs`.

    Returns
    -------
    Path
        The folder of results.
    """
    for name in names:
        _check(name)
    folder = Path(results_dir or os.environ.get(_VARIABLE) or "paper/results")
    summarise(store_dir, folder)
    known = Results(folder).runs if (folder / "runs.csv").is_file() else {}
    wanted = dict.fromkeys(run.name for name in names if ITEMS[name].data for run in runs_for(name))
    missing = [name for name in wanted if name not in known]
    if missing:
        train_missing(missing, None if data_dir is None else Path(data_dir), Path(store_dir), **options)
        summarise(store_dir, folder)
    return folder


def _write(sink: IO[bytes], text: str) -> None:
    sink.write(text.encode())


def _check(name: str) -> None:
    if name not in ITEMS:
        raise ValueError(f"name must be one of {', '.join(NAMES)}, got {name!r}")


def _some(names: Sequence[str], most: int = 6) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
