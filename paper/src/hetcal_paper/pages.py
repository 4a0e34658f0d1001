"""Write the reproduction pages: an index, one page per table or figure, and one about training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hetcal_paper.figures import draw_halves, save_figure
from hetcal_paper.files import write_text
from hetcal_paper.notes import count_claims, failed_claims, notes, summarise_claims
from hetcal_paper.published import ITEMS, NAMES
from hetcal_paper.reproduction import MissingRunsError, Reproduction, reproduce_from
from hetcal_paper.results import Results, read_results
from hetcal_paper.runs import runs_for
from hetcal_paper.sweeps import compare_networks, compare_with_ts
from hetcal_paper.tables import METRIC_NAMES, NONE, largest_distances, markdown_table
from hetcal_paper.training_page import training_page

__all__ = ["write_pages"]

_INTRODUCTION = """\
We reproduce every table and figure of Zhao, Chen and Oymak, *On the Role of Dataset Quality and
Heterogeneity in Model Confidence*, with networks that we trained ourselves. Each result has its own page,
which compares our numbers with those of the paper. In the table, *Runs* counts the networks that we have
trained, out of those that the result needs. The [conventions](#conventions) below explain the
abbreviations."""

_MORE = """\
A dash instead of a distance means that the paper prints no number to compare with. For claims that do not
hold, the page of the result shows by how much, with 95% intervals if there are several seeds.
[How the networks were trained](training.md) describes the recipes,
[the choice of the epoch](training.md#the-choice-of-the-epoch), the
[noise floors](training.md#noise-floors) and [how to add runs](training.md#add-runs).

The code is the second package of the repository, `hetcal-paper` (`pip install . ./paper`).
`hetcal reproduce NAME` computes one result from the files in `paper/results` within seconds, without a
GPU; with `--train` it trains missing runs first. `hetcal pages` writes these pages, so do not edit them by
hand."""

_CONVENTIONS = """\
- The methods are no calibration (`Uncal`), vector scaling (`VS`), temperature scaling (`TS`), class-wise
  temperature scaling with Γ = ∞ (`CTS`), with Γ chosen by cross-validation (`CTS-cv`) and with shrinkage
  (`CTS-bayes`), and the `AutoCalibrator` (`Auto`). The last three are not in the paper.
- ECE is the expected calibration error. Max-ECE and Avg-ECE are its maximum and its mean over the classes.
- Numbers are means ± standard deviations over seeds, in percent (fractions in the example). Intervals are
  95% intervals of the mean over seeds (Student's t). A dash means that there is no value; intervals, for
  example, need at least two seeds.
- The *combined standard deviation* of two numbers is the square root of the sum of their variances.
- A *floor* is the expected value of the metric for a perfectly calibrated model with the same
  confidences.
- *Confidence − accuracy* is positive if the network is over-confident.
- The ECE of a single class, and thus max-ECE and Avg-ECE, is computed over the rows predicted as the class.
  The confidence and accuracy of classes or of halves of the classes are computed over the rows with these
  true labels, and so is the ECE next to them in fig3 and fig4.
- A claim that a network, or one half of the classes, is over- or under-confident holds if the whole interval
  supports it or, with one seed, if the value does. A claim that compares two numbers compares their means."""

_FLOOR = """\
A *floor* is the expected value of the metric for a perfectly calibrated model with the same confidences.
The [conventions](index.md#conventions) explain the abbreviations and how the numbers are computed."""


def write_pages(results_dir: str | Path, docs_dir: str | Path) -> list[Path]:
    """Write the reproduction pages and their figures.

    A table or figure for which the results contain no runs has no page. The index lists it as not trained.

    Parameters
    ----------
    results_dir : path
        Folder of results.
    docs_dir : path
        Folder for the pages; created if needed.

    Returns
    -------
    list of Path
        The files that were written; the index is the last.
    """
    folder = Path(docs_dir)
    folder.mkdir(parents=True, exist_ok=True)
    results = read_results(results_dir)
    items = [item for item in (_reproduce(name, results) for name in NAMES) if item is not None]
    paths = [save_figure(item.figure(), folder / f"{item.name}.svg") for item in items]
    table2 = next((item for item in items if item.name == "table2"), None)
    if table2 is not None and table2.selection is not None:
        paths.append(save_figure(draw_halves("table2", table2.selection), folder / "table2-halves.svg"))
    texts = {item.name: _item_page(item) for item in items}
    texts |= {"training": training_page(items, results), "index": _index(items)}
    for name, text in texts.items():
        write_text(folder / f"{name}.md", text)
    return [*paths, *(folder / f"{name}.md" for name in texts)]


def _reproduce(name: str, results: Results) -> Reproduction | None:
    try:
        return reproduce_from(results, name)
    except MissingRunsError:
        return None


def _index(items: Sequence[Reproduction]) -> str:
    parts = ["# Reproduction of the paper", _INTRODUCTION, _overview(items), _MORE]
    return "\n\n".join([*parts, "## Conventions", _CONVENTIONS]) + "\n"


def _overview(items: Sequence[Reproduction]) -> str:
    """Return the Markdown table of the index, with one line per table or figure and one for the example."""
    present = {item.name: item for item in items}
    lines = []
    for name, published in ITEMS.items():
        n_runs = len(runs_for(name)) if published.data else 0
        item = present.get(name)
        if item is None:
            lines.append([f"{name}: {published.title}", f"0 of {n_runs}", NONE, NONE, "Not trained yet."])
            continue
        runs = f"{n_runs - len(item.missing)} of {n_runs}" if n_runs else "computed"
        link = f"[{name}]({name}.md): {published.title}"
        lines.append([link, runs, count_claims(item), _distance(item), summarise_claims(item)])
    head = ["Result", "Runs", "Claims that hold", "Largest distance from the paper (points)", "Our result"]
    return markdown_table(head, lines, numbers=False)


def _distance(item: Reproduction) -> str:
    """Name the largest distance from the published numbers, in points, and its metric; a dash if none."""
    distances = largest_distances(item.rows)
    if not distances:
        return NONE
    metric = max(distances, key=lambda metric: distances[metric])
    return f"{100 * distances[metric]:.1f} in {METRIC_NAMES[metric]}"


def _item_page(item: Reproduction) -> str:
    """Return the page of one table or figure: figure, explanation of terms, tables, claims and notes."""
    parts = [f"# {item.name}: {item.title}", f"![{item.title}]({item.name}.svg)", _terms(item), item.body()]
    if item.name == "table2":
        parts.append("![Reliability of the noisy and of the clean classes](table2-halves.svg)")
    parts += [failed_claims(item), compare_with_ts(item), compare_networks(item), notes(item)]
    parts.append("[All results](index.md) · [How the networks were trained](training.md)")
    return "\n\n".join(part for part in parts if part) + "\n"


def _terms(item: Reproduction) -> str:
    """Return the text that explains the terms used on a page.

    If one half of the classes was corrupted, the text defines both halves and the noise or sampling rate.
    """
    if item.selection is None:
        return "The [conventions](index.md#conventions) explain the abbreviations."
    published, run = ITEMS[item.name], item.selection.points[0].run
    middle = run.n_classes // 2
    first, second = f"0-{middle - 1}", f"{middle}-{run.n_classes - 1}"
    halves = f"The *{published.low}* are classes {first}, and the *{published.high}* are classes {second}."
    corruption = {
        "noise": f"{halves} The noise rate is the probability with which a training label of classes {first} "
        "is redrawn uniformly from all classes; the labels of the other classes stay unchanged.",
        "sampling": f"{halves} The sampling rate is the fraction of the training rows of classes {first} "
        "that is used; all training rows of the other classes are used.",
        None: "",
    }[published.halves.corruption]
    return f"{corruption}\n\n{_FLOOR}".strip()
