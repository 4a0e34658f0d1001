"""The page of the reproduction: results in, ``index.md`` and a figure per item out.

``python -m hetcal.experiments.pages --results results --docs docs/reproduction --store runs``

adds the finished runs of the store to the results, then writes the page. Only items with runs are on it.
With ``--add DIR``, runs that were summarised elsewhere are added first.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from hetcal.experiments.page_tables import all_classes, both, checked, choices, floors, other_epochs
from hetcal.experiments.paper import MissingRunsError, Reproduction, reproduce_from
from hetcal.experiments.paper_figures import draw_halves, save_figure
from hetcal.experiments.paper_numbers import ITEMS, NAMES
from hetcal.experiments.paper_tables import grid
from hetcal.experiments.paper_texts import CHOICES, EPOCHS, INTRODUCTION, NOTES, OPEN, OTHERS, VS_BY_CLASS
from hetcal.experiments.results import Results, merge, read_results, summarise
from hetcal.experiments.runs import Run, clean, paper_grid, runs_for, usual
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
        parts += [part for item in tables for part in (f"{item.title}:", choices(item), both(item))]
        parts += ["## How much of it is noise", *(floors(item) for item in tables)]
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
    parts += [
        _departures(item),
        checked(item),
        other_epochs(item),
        all_classes(item),
        NOTES.get(item.name, ""),
    ]
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


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page from the command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="hetcal.experiments.pages", description=(__doc__ or "").split("\n")[0]
    )
    add = parser.add_argument
    add("--store", action="append", default=[], metavar="DIR", help="raw runs to add first; may be repeated")
    add("--add", action="append", default=[], metavar="DIR", help="results of other runs to add first")
    add("--results", default="results", metavar="DIR", help="folder of result files (default: results)")
    add("--docs", default="docs/reproduction", metavar="DIR", help="folder for the page")
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
