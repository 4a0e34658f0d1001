"""The pages of the reproduction: results in; an index, a page and a figure per item, and one on training out.

``python -m hetcal_paper.pages --results results --docs docs/reproduction --store runs``

adds the finished runs of the store to the results, then writes the pages. Only items with runs have one.
With ``--add DIR``, runs that were summarised elsewhere are added first.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import IO

from hetcal._write import write_atomic
from hetcal_paper.page_claims import agreement, failed_claims, verdicts
from hetcal_paper.page_notes import notes
from hetcal_paper.page_tables import all_classes, checked, other_epochs
from hetcal_paper.page_training import departures, training_page
from hetcal_paper.paper import MissingRunsError, Reproduction, reproduce_from
from hetcal_paper.paper_figures import draw_halves, save_figure
from hetcal_paper.paper_numbers import ITEMS, NAMES
from hetcal_paper.paper_tables import METRIC_NAMES, grid, largest_distances
from hetcal_paper.paper_texts import CONVENTIONS, INTRODUCTION, MORE
from hetcal_paper.results import Results, merge, read_results, summarise
from hetcal_paper.runs import runs_for

__all__ = ["main", "write_pages"]

_NONE = "–"


def write_pages(results_dir: str | Path, docs_dir: str | Path) -> list[Path]:
    """Write the pages and their figures; returns the files, the index last."""
    folder = Path(docs_dir)
    folder.mkdir(parents=True, exist_ok=True)
    results = read_results(results_dir)
    items = [item for item in (_try(name, results) for name in NAMES) if item is not None]
    written = [save_figure(item.figure(), folder / f"{item.name}.svg") for item in items]
    table2 = next((item for item in items if item.name == "table2"), None)
    if table2 is not None and table2.selection is not None:
        halves = draw_halves("table2", table2.selection)
        written.append(save_figure(halves, folder / "table2-halves.svg"))
    texts = {item.name: _item_page(item) for item in items}
    texts |= {"training": training_page(items, results), "index": _index(items)}
    for name, text in texts.items():
        write_atomic(folder / f"{name}.md", partial(_write, text=text))
    return [*written, *(folder / f"{name}.md" for name in texts)]


def _write(sink: IO[bytes], text: str) -> None:
    sink.write(text.encode())


def _try(name: str, results: Results) -> Reproduction | None:
    try:
        return reproduce_from(results, name)
    except MissingRunsError:
        return None


def _index(items: Sequence[Reproduction]) -> str:
    parts = ["# The paper, reproduced", INTRODUCTION, _overview(items), MORE, "## Conventions", CONVENTIONS]
    return "\n\n".join(parts) + "\n"


def _overview(items: Sequence[Reproduction]) -> str:
    """One line per table or figure: runs, claims, distance from the paper, and what that means."""
    present = {item.name: item for item in items}
    lines = []
    for name, (title, n_runs) in _titles().items():
        item = present.get(name)
        if item is None:
            lines.append([f"{name}: {title}", f"0 of {n_runs}", _NONE, _NONE, "Not trained yet."])
            continue
        runs = f"{n_runs - len(item.missing)} of {n_runs}" if n_runs else "computed"
        link = f"[{name}]({name}.md): {title}"
        lines.append([link, runs, verdicts(item), _distance(item), agreement(item)])
    head = ["Result", "Runs", "Claims that hold", "Largest distance from the paper (points)", "In short"]
    return grid(head, lines, numbers=False)


def _titles() -> dict[str, tuple[str, int]]:
    """Title and number of runs of every item."""
    return {name: (item.title, len(runs_for(name)) if item.data else 0) for name, item in ITEMS.items()}


def _distance(item: Reproduction) -> str:
    """The largest distance from the paper's numbers, in points, and its metric."""
    apart = largest_distances(item.rows)
    if not apart:
        return _NONE
    metric = max(apart, key=lambda metric: apart[metric])
    return f"{100 * apart[metric]:.1f} in {METRIC_NAMES[metric]}"


def _item_page(item: Reproduction) -> str:
    """One table or figure: picture, tables, claims, and why they may differ."""
    _, *body = item.to_markdown().rstrip().split("\n\n")
    parts = [f"# {item.name}: {item.title}", f"![{item.title}]({item.name}.svg)", *body]
    if item.name == "table2":
        parts.append("![Reliability by half of the classes](table2-halves.svg)")
    further = [departures(item), checked(item), other_epochs(item), all_classes(item), notes(item)]
    parts.append(failed_claims(item))
    if any(further):
        parts += ["## Notes", *further]
    parts.append("[All results](index.md) · [How the networks were trained](training.md)")
    return "\n\n".join(part for part in parts if part) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Write the pages from the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="hetcal_paper.pages", description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--store", action="append", default=[], metavar="DIR", help="raw runs to add first; may be repeated")
    add("--add", action="append", default=[], metavar="DIR", help="results of other runs to add first")
    add(
        "--results",
        default="paper/results",
        metavar="DIR",
        help="folder of result files (default: paper/results)",
    )
    add("--docs", default="docs/reproduction", metavar="DIR", help="folder for the pages")
    add("--force", action="store_true", help="summarise runs again that the results hold")
    options = parser.parse_args(argv)
    try:
        for folder in options.add:
            sys.stdout.write(f"{folder}: {len(merge(folder, options.results))} runs added\n")
        for folder in options.store:
            added = summarise(folder, options.results, force=options.force)
            sys.stdout.write(f"{folder}: {len(added)} runs added\n")
        written = write_pages(options.results, options.docs)
    except (ValueError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    sys.stdout.write(f"wrote {len(written)} files to {options.docs}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
