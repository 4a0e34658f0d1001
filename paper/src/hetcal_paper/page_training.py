"""The page on training: recipes, other runs, the choice of the epoch, noise floors, and how to add runs."""

from __future__ import annotations

from collections.abc import Sequence

from hetcal_paper.page_tables import both, choices, floors
from hetcal_paper.paper import Reproduction
from hetcal_paper.paper_tables import grid
from hetcal_paper.paper_texts import ADD_RUNS, CHOICES, EPOCHS, OPEN, OTHERS
from hetcal_paper.results import Results
from hetcal_paper.runs import Run, clean, paper_grid, usual

__all__ = ["departures", "training_page"]

_TABLES = ("table2", "table1")
_DATA = {"c10": "CIFAR-10", "c100": "CIFAR-100"}
_NETWORKS = {"resnet20": "ResNet-20", "wrn28x10": "WideResNet-28-10"}
_OPTIMISERS = {"adam": "Adam", "sgd": "SGD with Nesterov momentum 0.9"}


def training_page(items: Sequence[Reproduction], results: Results) -> str:
    """Return the page as Markdown."""
    parts = ["# How the networks were trained", *(_recipe(data, results) for data in _DATA)]
    parts += [OPEN, _effort(results), _other_recipes(results)]
    tables = [item for item in items if item.name in _TABLES]
    if tables:
        parts += ["## The choice of the epoch", EPOCHS]
        parts += [part for item in tables for part in (f"{item.title}:", choices(item), both(item))]
        parts += ["## Noise floors", *(floors(item) for item in tables)]
    parts += ["## Add runs", ADD_RUNS]
    return "\n\n".join(part for part in parts if part) + "\n"


def departures(item: Reproduction) -> str:
    """Say where the runs of an item do not follow the usual recipe."""
    if item.selection is None:
        return ""
    unusual = [part for point in item.selection.present for part in _unusual(point.run)]
    if not unusual:
        return ""
    return f"These runs depart from [the usual recipe](training.md): {', '.join(dict.fromkeys(unusual))}."


def _recipe(data: str, results: Results) -> str:
    """Describe how the runs of a data set were trained by default."""
    if not any(line["dataset"] == data for line in _of_the_paper(results).values()):
        return ""
    run = clean(data, 0)
    return (
        f"**{_DATA[data]}**: {_NETWORKS[run.network]}, {_OPTIMISERS[run.recipe]}, {run.epochs} epochs, "
        f"batch size {run.batch_size}, learning rate {_rates(run)} epochs, weight decay {run.weight_decay:g} "
        "(added to the gradient, for all parameters). Images are shifted by up to 4 pixels with zero "
        "padding and flipped at random. Training uses 45,000 rows; 5,000 rows with equal classes, never "
        "corrupted, are for validation. Calibrators are fitted on the validation rows and judged on the "
        f"10,000 test rows. The epoch that represents a run: {CHOICES[run.choice]}."
    )


def _rates(run: Run) -> str:
    first, *later = run.schedule
    return f"{first[1]:g}" + "".join(f" → {rate:g} after {start - 1}" for start, rate in later)


def _unusual(run: Run) -> list[str]:
    """What differs from the usual recipe in the training of a run."""
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
    """Runs that no table or figure uses, because their recipe was abandoned."""
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
    table = grid(["Run", "best epoch", "validation accuracy", "test accuracy"], lines)
    return f"## Other runs\n\n{OTHERS}\n\n{table}"


def _effort(results: Results) -> str:
    lines = list(_of_the_paper(results).values())
    hours = sum(float(line["seconds"]) for line in lines) / 3600
    devices = ", ".join(sorted({line["device"] for line in lines}))
    torch = ", ".join(sorted({line["torch"] for line in lines}))
    return (
        f"These pages rest on {len(lines)} runs: {hours:.1f} hours of training in all, if each run is "
        f"counted separately (many ran in parallel), on {devices} with PyTorch {torch}. `results/runs.csv` "
        "lists them."
    )
