"""The page of the reproduction: results in, ``index.md`` and a figure per item out.

``python -m hetcal.experiments.pages --results results --docs docs/reproduction --store runs``

adds the finished runs of the store to the results, then writes the page. Only items with runs are on it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hetcal.experiments.judging import BINS
from hetcal.experiments.paper import MissingRunsError, Reproduction, reproduce_from
from hetcal.experiments.paper_figures import draw_halves, save_figure
from hetcal.experiments.paper_numbers import ITEMS, NAMES
from hetcal.experiments.paper_rows import Row, first_row
from hetcal.experiments.paper_tables import grid, in_words
from hetcal.experiments.paper_texts import (
    BOTH,
    CHECKED,
    CHOICES,
    EPOCHS,
    FLOORS,
    INTRODUCTION,
    NOTES,
    OPEN,
    OTHERS,
    STOPPED,
    VS_BY_CLASS,
)
from hetcal.experiments.results import Results, read_results, summarise
from hetcal.experiments.runs import Run, clean, paper_grid, parse, runs_for, usual
from hetcal.files import write_atomic

__all__ = ["main", "write_pages"]

_TABLES = ("table2", "table1")
_DATA = {"c10": "CIFAR-10", "c100": "CIFAR-100"}
_NETWORKS = {"resnet20": "ResNet-20", "wrn28x10": "WideResNet-28-10"}
_OPTIMISERS = {"adam": "Adam", "sgd": "SGD with Nesterov momentum 0.9"}


def write_pages(results_dir: str | Path, docs_dir: str | Path) -> list[Path]:
    """Write ``index.md`` and the figures; returns the files."""
    folder = Path(docs_dir)
    folder.mkdir(parents=True, exist_ok=True)
    results = read_results(results_dir)
    made = [item for item in (_try(name, results) for name in NAMES) if item is not None]
    written = [save_figure(item.figure(), folder / f"{item.name}.svg") for item in made]
    table2 = next((item for item in made if item.name == "table2"), None)
    if table2 is not None and table2.selection is not None:
        halves = draw_halves("table2", table2.selection)
        written.append(save_figure(halves, folder / "table2-halves.svg"))
    text = "\n\n".join(part for part in _page(made, results) if part) + "\n"
    write_atomic(folder / "index.md", lambda sink: sink.write(text.encode()))
    return [*written, folder / "index.md"]


def _try(name: str, results: Results) -> Reproduction | None:
    try:
        return reproduce_from(results, name)
    except MissingRunsError:
        return None


def _page(made: Sequence[Reproduction], results: Results) -> list[str]:
    parts = ["# The paper, reproduced", INTRODUCTION, _overview(made), "## How the networks were trained"]
    parts += [_recipe(data, results) for data in _DATA]
    parts += [OPEN, _effort(results), _other_recipes(results)]
    tables = [item for item in made if item.name in _TABLES]
    if tables:
        parts += ["## The choice of the epoch", EPOCHS]
        parts += [part for item in tables for part in (f"{item.title}:", _choices(item), _both(item))]
        parts += ["## How much of it is noise", *(_floors(item) for item in tables)]
    return parts + [part for item in made for part in _section(item)]


def _overview(made: Sequence[Reproduction]) -> str:
    there = {item.name: item for item in made}
    lines = []
    for name, item in ITEMS.items():
        n = len(runs_for(name)) if item.data else 0
        mine = there.get(name)
        if mine is None:
            lines.append([name, item.title, f"0 of {n}", "–"])
            continue
        judged = mine.claims and not 0 < n == len(mine.missing)  # stand-ins judge no sweep
        held = f"{sum(claim.holds for claim in mine.claims)} of {len(mine.claims)}" if judged else "–"
        runs = f"{n - len(mine.missing)} of {n}" if n else "computed"
        lines.append([f"[{name}](#{name})", item.title, runs, held])
    return grid(["", "Shows", "Runs", "Claims that hold"], lines, numbers=False)


def _section(item: Reproduction) -> list[str]:
    """One table or figure: picture, tables, claims, and why they may differ."""
    head, *body = item.to_markdown().rstrip().split("\n\n")
    title = head.removeprefix(f"## {item.name}: ")
    parts = [f'<a id="{item.name}"></a>', f"## {item.name}: {title}", f"![{title}]({item.name}.svg)", *body]
    if item.name == "table2":
        parts.append("![Reliability by half of the classes](table2-halves.svg)")
    parts += [_departures(item), _checked(item), NOTES.get(item.name, "")]
    verdicts = {claim.text.rpartition(", by ")[2]: claim.holds for claim in item.claims}
    if verdicts.get("predicted class") and not verdicts.get("true class"):
        parts.append(VS_BY_CLASS)
    return parts


def _recipe(data: str, results: Results) -> str:
    """Say in words how the runs of a data set were trained by default."""
    if not any(line["dataset"] == data for line in _of_the_paper(results).values()):
        return ""
    run = clean(data, 0)
    return (
        f"**{_DATA[data]}**: {_NETWORKS[run.network]}, {_OPTIMISERS[run.recipe]}, {run.epochs} epochs, "
        f"batch size {run.batch_size}, learning rate {_rates(run)} epochs, weight decay {run.weight_decay:g} "
        "(added to the gradient, for all parameters), images shifted by up to 4 pixels over zeros and "
        "flipped at random. 45,000 rows for training, 5,000 with equal classes for validation, never "
        "corrupted; calibrators are fitted on the validation rows and judged on the 10,000 test rows. The "
        f"epoch that stands for a run: {CHOICES[run.choice]}."
    )


def _rates(run: Run) -> str:
    first, *later = run.schedule
    return f"{first[1]:g}" + "".join(f" → {rate:g} after {start - 1}" for start, rate in later)


def _departures(item: Reproduction) -> str:
    """Say where the runs of an item are not trained by the recipe above."""
    if item.selection is None:
        return ""
    odd = [part for point in item.selection.present for part in _odd(point.run)]
    return f"These runs depart from the recipe: {', '.join(dict.fromkeys(odd))}." if odd else ""


def _odd(run: Run) -> list[str]:
    """What is not as usual in the training of a run."""
    plain = usual(run)
    words = {
        "network": _NETWORKS.get(run.network, run.network),
        "recipe": f"{_OPTIMISERS[run.recipe]} with learning rate {_rates(run)} epochs",
        "epochs": f"{run.epochs} epochs",
        "batch_size": f"batch size {run.batch_size}",
        "weight_decay": f"weight decay {run.weight_decay:g}",
        "choice": f"epoch kept: {CHOICES[run.choice]}",
    }
    return [text for key, text in words.items() if getattr(run, key) != getattr(plain, key)]


def _in_full(results: Results, run: Run) -> list[str]:
    """Names of the runs with the same training rows and the usual recipe, if this one has another."""
    wanted = usual(run)
    same = [name for name in results.runs if replace(parse(name), seed=run.seed) == wanted]
    return [] if wanted == run else same


def _checked(item: Reproduction) -> str:
    """Points of another recipe beside those of the usual one, where both were trained."""
    if item.selection is None:
        return ""
    results, lines = item.selection.results, []
    for point in item.selection.present:
        full = _in_full(results, point.run)
        for recipe, runs in (("this", point.runs), ("usual", full)) if full else ():
            rate = f"{100 * point.rate(item.selection.kind):g}%"
            numbers = _means(results, runs, parse(runs[0]).choice, ("ece", "max_ece"))
            lines.append([rate, recipe, str(len(runs)), *numbers])
    if not lines:
        return ""
    low, high = ITEMS[item.name].low, ITEMS[item.name].high
    head = [
        "Rate",
        "Recipe",
        "seeds",
        "accuracy",
        low,
        high,
        "ECE Uncal",
        "TS",
        "CTS",
        "max-ECE Uncal",
        "TS",
        "CTS",
    ]
    return f"{CHECKED.format(bins=BINS[-1])}\n\n{grid(head, lines)}"


def _of_the_paper(results: Results) -> dict[str, dict[str, str]]:
    """Runs that tables and figures use."""
    names = {run.name for runs in paper_grid().values() for run in runs}
    return {name: line for name, line in results.runs.items() if name in names}


def _other_recipes(results: Results) -> str:
    """Runs that no table or figure uses, because their recipe was given up."""
    used = _of_the_paper(results)
    lines = [
        [name, line["chosen"].split()[0].removeprefix("best="), *(
            f"{100 * float(line[key]):.2f}" for key in ("val_accuracy", "test_accuracy")
        )]
        for name, line in results.runs.items()
        if name not in used
    ]  # fmt: skip
    if not lines:
        return ""
    return f"{OTHERS}\n\n" + grid(["Run", "best epoch", "validation accuracy", "test accuracy"], lines)


def _effort(results: Results) -> str:
    lines = list(_of_the_paper(results).values())
    hours = sum(float(line["seconds"]) for line in lines) / 3600
    devices = ", ".join(sorted({line["device"] for line in lines}))
    torch = ", ".join(sorted({line["torch"] for line in lines}))
    return (
        f"{len(lines)} runs stand behind this page, {hours:.1f} hours of training if each is counted by "
        f"itself (many ran side by side), on {devices} with PyTorch {torch}. `results/runs.csv` has them one "
        "by one."
    )


def _choices(item: Reproduction) -> str:
    """Confidence − accuracy and ECE of the same runs at other epochs."""
    if item.selection is None:
        return ""
    results, (point,) = item.selection.results, item.selection.present
    known = [_trained(results, run) for run in point.runs]
    shared = [choice for choice in CHOICES if all(choice in epochs for epochs in known)]
    names = ITEMS[item.name]
    head = ["Epoch kept", "number", "accuracy", names.low, names.high, "ECE Uncal", "TS", "CTS"]
    lines = []
    for choice in shared:
        rows = reproduce_from(results, item.name, choice=choice).rows
        epochs = [of_run[choice] for of_run in known]
        number = f"{min(epochs)}" if len(set(epochs)) == 1 else f"{min(epochs)} to {max(epochs)}"
        accuracy = first_row(rows, method="Uncal", metric="accuracy", half=None)
        gaps = [_gap(rows, half) for half in ("low", "high")]
        errors = [first_row(rows, method=m, metric="ece", bins=BINS[-1]) for m in ("Uncal", "TS", "CTS")]
        lines.append([CHOICES[choice], number, in_words(accuracy), *gaps, *map(in_words, errors)])
    note = f"{names.low.capitalize()} and {names.high}: confidence − accuracy in points, with its interval."
    ended = [run for run in point.runs if _ended(results, run)]
    more = STOPPED.format(n=len(ended), of=len(point.runs)) if ended else ""
    return f"{grid(head, lines)}\n\n{note} ECE at {BINS[-1]} bins.{more}"


def _ended(results: Results, run: str) -> bool:
    """Whether training was ended when patience was, so that later epochs are not known."""
    return results.choices(run)["last"] < int(results.runs[run]["epochs"])


def _trained(results: Results, run: str) -> dict[str, int]:
    """Epoch by choice, without those that a run that was ended early cannot tell."""
    epochs = results.choices(run)
    if not _ended(results, run):
        return epochs
    last = parse(run).phase(epochs["last"])[0]
    return {c: e for c, e in epochs.items() if c not in ("best", "last", f"phase{last}")}


def _both(item: Reproduction) -> str:
    """An early epoch beside the best of all, on runs of other weight decays that were trained to the end."""
    if item.selection is None:
        return ""
    results, (point,) = item.selection.results, item.selection.present
    names = [
        name
        for name in results.runs
        if replace(parse(name), seed=0, weight_decay=point.run.weight_decay) == point.run
        and name not in point.runs
        and {"phase2", "best"} <= results.choices(name).keys()
        and not _ended(results, name)
    ]
    lines = [
        [
            f"{parse(name).weight_decay:g}",
            CHOICES[choice].split(" (")[0],
            str(results.choices(name)[choice]),
            *_means(results, [name], choice),
        ]
        for name in names
        for choice in ("phase2", "best")
    ]
    if not lines:
        return ""
    low, high = ITEMS[item.name].low, ITEMS[item.name].high
    head = ["Weight decay", "Epoch kept", "number", "accuracy", low, high, "ECE Uncal", "TS", "CTS"]
    return f"{BOTH}\n\n{grid(head, lines)}"


def _means(
    results: Results, runs: Sequence[str], choice: str, metrics: Sequence[str] = ("ece",)
) -> list[str]:
    """Means over runs in per cent: accuracy, confidence − accuracy by half, errors of three methods."""

    def mean(metric: str, **key: Any) -> float:
        return 100 * float(np.mean([results.value(run, metric, choice=choice, **key)[0] for run in runs]))

    errors = [
        mean(metric, method=method, bins=BINS[-1]) for metric in metrics for method in ("Uncal", "TS", "CTS")
    ]
    gaps = [f"{mean('gap', half=half):+.1f}" for half in ("low", "high")]
    return [f"{mean('accuracy'):.2f}", *gaps, *(f"{error:.2f}" for error in errors)]


def _gap(rows: Sequence[Row], half: str) -> str:
    row = first_row(rows, metric="gap", half=half)
    if row is None:
        return "–"
    ends = "" if row["low"] is None else f" ({100 * row['low']:+.1f} to {100 * row['high']:+.1f})"
    return f"{100 * row['mean']:+.1f}{ends}"


def _floors(item: Reproduction) -> str:
    if item.selection is None:
        return ""
    (point,) = item.selection.present
    table = item.selection.results.classes(point.runs[0], "CTS", BINS[0], item.choice)
    found = [
        first_row(item.rows, method="CTS", metric=m, bins=BINS[0], half=None) for m in ("max_ece", "ece")
    ]
    worst, whole = (row or {} for row in found)
    return FLOORS.format(
        name=item.name,
        rows=round(float(np.nanmean(table.n_true))),
        bins=BINS[0],
        floor=100 * worst["floor"],
        share=100 * worst["floor"] / worst["mean"],
        value=100 * worst["mean"],
        paper=100 * worst["paper"],
        ece_floor=100 * whole["floor"],
        ece=100 * whole["mean"],
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page from the command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="hetcal.experiments.pages", description=(__doc__ or "").split("\n")[0]
    )
    add = parser.add_argument
    add("--store", action="append", default=[], metavar="DIR", help="raw runs to add first; may be repeated")
    add("--results", default="results", metavar="DIR", help="folder of result files (default: results)")
    add("--docs", default="docs/reproduction", metavar="DIR", help="folder for the page")
    add("--force", action="store_true", help="summarise runs again that the results hold")
    options = parser.parse_args(argv)
    try:
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
