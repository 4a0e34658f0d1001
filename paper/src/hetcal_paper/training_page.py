"""Write the page about training: recipes, abandoned runs, choice of the epoch, noise floors, adding runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from hetcal_paper.evaluate_run import BINS
from hetcal_paper.published import ITEMS
from hetcal_paper.reproduction import Reproduction, reproduce_from
from hetcal_paper.results import Results
from hetcal_paper.rows import Row, first_row
from hetcal_paper.runs import Run, clean, items_of, parse, runs_for, with_default_recipe
from hetcal_paper.tables import NONE, markdown_table, mean_and_std, signed_interval

__all__ = [
    "EPOCHS",
    "differing_settings",
    "means_over_runs",
    "network_name",
    "stopped_early",
    "training_page",
]

_TABLES = ("table2", "table1")
_DATA = {"c10": "CIFAR-10", "c100": "CIFAR-100"}
_NETWORKS = {"resnet20": "ResNet-20", "wrn28x10": "WideResNet-28-10"}
_ECE_HEAD = ("Uncal ECE", "TS ECE", "CTS ECE")
_OPTIMISERS = {"adam": "Adam", "sgd": "SGD with Nesterov momentum 0.9"}

#: Descriptions of the rules that choose the epoch of a run.
EPOCHS = {
    "best": "best validation accuracy",
    "early": "best validation accuracy, with early stopping after 60 epochs without improvement",
    "phase1": "best of the first phase",
    "phase2": "best of the second phase",
    "phase3": "best of the third phase",
    "phase4": "best of the fourth phase",
    "last": "last",
}

_UNSPECIFIED = """\
The paper does not state the batch size, the weight decay, the momentum or the number of bins of the expected
calibration error (ECE). We use the values above for all tables and figures except the CIFAR-100 sweeps (fig5
and fig8), which have a shorter recipe. We report ECE with 10 and with 15 bins and compare both with the
paper. Figures 2 and 12 of the paper sample from all 50,000 training rows. Here 5,000 rows always belong to
the validation set, so 100% means 45,000 rows. The [conventions](index.md#conventions) explain the
abbreviations.

We tuned the batch size and the weight decay for CIFAR-10. We trained seven recipes (batch sizes 32, 64 and
128, weight decays from 0 to 5e-4) on seed 0 of table2 for about 80 epochs. We trained one of them also on
seed 1. We compared their test accuracy and calibration errors with the paper. The final recipe, weight decay
2e-4 and batch size 128, was not one of the seven. It lies between two of them: the accuracy of one of these
was above that of the paper, and the accuracy of the other was below it. Its weight decay adds the same term
to the gradient as `l2(1e-4)` in the ResNet example of Keras, the framework that the paper used. That example,
however, applies the penalty only to convolution kernels. The agreement of table2 with the paper is therefore
partly a result of this tuning, which used seed 0 of the same table.

With all seven recipes, CTS and VS had a much lower max-ECE than TS. With batch size 32 (stopped before the
learning rate dropped), the ECE of TS was as low as that of CTS and VS. With batch size 64 and no weight
decay, TS reduced neither ECE nor max-ECE. We used the final recipe for all runs of CIFAR-10."""

_ABANDONED = """\
These runs were trained with recipes that we abandoned. No table or figure uses them, but some notes compare
other runs with them. Their metrics are in `paper/results/metrics.csv`. The name of a run contains the data
set, what was done to the training rows, the seed (`s`), and every setting that differs from the recipe above
(`wd` is the weight decay).

On CIFAR-100 with noisy labels, the validation accuracy has two peaks: one after the first drop of the
learning rate, where the paper has its best epoch, and one at the end, when the network has memorised the
wrong labels. [The choice of the epoch](training.md#the-choice-of-the-epoch) compares them. The recipe uses
weight decay 5e-4, the usual value for this network, and early stopping, which selects the first peak. This
agrees with what the paper says about its noisy runs ("the training stops before model achieves 100% training
accuracy")."""

_CHOICE = """\
The paper uses the epoch with the best validation accuracy and explains in a footnote why this matters:
with noisy labels, the best epoch comes right after the first drop of the learning rate, before the network
has memorised the wrong labels. A network that is trained to the end has memorised them and is confident
even where it is wrong. The following tables show the same runs at different epochs. A *phase* is a period of
constant learning rate; its best epoch is the one with the best validation accuracy."""

_TWO_EPOCHS = """\
The following table shows single runs of this training that were trained to the end, with several weight
decays. It compares the best epoch of the second phase with the best epoch overall. Its columns are the same
as above."""

_ADD_RUNS = """\
Two commands train the runs of a table or figure and add them to these pages. On a machine with a GPU, train
the runs and write their results to a small folder, `new-results`. DIR contains the *binary version* of CIFAR:

```bash
hetcal train table1 --data DIR --out runs --summary new-results
```

Copy that folder to a checkout of the repository and add it to `paper/results` and to these pages:

```bash
hetcal pages --add new-results
```

The folder contains CSV files and, for some runs, logits. Runs that `paper/results` already
contains stay unchanged. `hetcal train --pending` lists the missing runs, the most important first. Both
commands need `pip install . ./paper`."""


def training_page(items: Sequence[Reproduction], results: Results) -> str:
    """Return the page about training as Markdown."""
    parts = ["# How the networks were trained", *(_recipe(data, results) for data in _DATA)]
    parts += [_UNSPECIFIED, _effort(results), _abandoned_runs(results)]
    tables = [item for item in items if item.name in _TABLES]
    if tables:
        parts += ["## The choice of the epoch", _CHOICE]
        parts += [part for item in tables for part in (f"{item.title}:", _choices(item), _two_epochs(item))]
        parts += ["## Noise floors", *(_floors(item) for item in tables)]
    parts += ["## Add runs", _ADD_RUNS]
    return "\n\n".join(part for part in parts if part) + "\n"


def network_name(run: Run) -> str:
    """Return the usual name of the network of a run."""
    return _NETWORKS.get(run.network, run.network)


def differing_settings(run: Run) -> list[str]:
    """Describe the settings of a run that differ from the default recipe."""
    default = with_default_recipe(run)
    descriptions = {
        "network": network_name(run),
        "recipe": f"{_OPTIMISERS[run.recipe]} with learning rate {_rates(run)} epochs",
        "epochs": f"{run.epochs} epochs in total",
        "batch_size": f"batch size {run.batch_size}",
        "weight_decay": f"weight decay {run.weight_decay:g}",
        "choice": "early stopping" if run.choice == "early" else "no early stopping",
    }
    return [text for field, text in descriptions.items() if getattr(run, field) != getattr(default, field)]


def stopped_early(results: Results, run: str) -> bool:
    """Whether training stopped before its last planned epoch."""
    return results.choices(run)["last"] < int(results.runs[run]["epochs"])


def means_over_runs(
    results: Results, runs: Sequence[str], choice: str, metrics: Sequence[str] = ("ece",)
) -> list[str]:
    """Return table cells with means over runs, in percent.

    The first cell is the accuracy. The next two are confidence − accuracy of the uncalibrated network, on the
    first and on the second half of the classes. The others are each of ``metrics`` for Uncal, TS and CTS;
    these metrics are calibration errors with 15 bins.
    """

    def mean(metric: str, **key: Any) -> float:
        return 100 * float(np.mean([results.value(run, metric, choice=choice, **key)[0] for run in runs]))

    errors = [mean(metric, method=m, bins=BINS[-1]) for metric in metrics for m in ("Uncal", "TS", "CTS")]
    gaps = [f"{mean('gap', half=half):+.1f}" for half in ("low", "high")]
    return [f"{mean('accuracy'):.2f}", *gaps, *(f"{error:.2f}" for error in errors)]


def _recipe(data: str, results: Results) -> str:
    """Describe the default recipe of a data set; empty if the results contain no run that uses the data set.

    Only runs on the pages of tables and figures count.
    """
    if not any(line["dataset"] == data for line in _used_runs(results).values()):
        return ""
    run = clean(data, 0)
    return (
        f"**{_DATA[data]}**: {network_name(run)}, {_OPTIMISERS[run.recipe]}, {run.epochs} epochs, "
        f"batch size {run.batch_size}, learning rate {_rates(run)} epochs, weight decay {run.weight_decay:g} "
        "(added to the gradient of all parameters). Images are shifted by up to 4 pixels with zero "
        "padding and randomly flipped horizontally. Training uses 45,000 rows. The other 5,000 rows are used "
        "for validation; they contain every class equally often and are never corrupted. Calibrators are "
        "fitted on the validation rows and evaluated on the 10,000 test rows. Each run is represented by the "
        f"epoch with the {EPOCHS[run.choice]}."
    )


def _rates(run: Run) -> str:
    first, *later = run.schedule
    return f"{first[1]:g}" + "".join(f" → {rate:g} after {start - 1}" for start, rate in later)


def _used_runs(results: Results) -> dict[str, dict[str, str]]:
    """Return the lines of ``runs.csv`` by run, for the runs on the pages of tables and figures."""
    return {name: line for name, line in results.runs.items() if items_of(name) or _is_compared(name)}


def _is_compared(name: str) -> bool:
    """Whether a run has the default recipe and is compared with the runs of a sweep on the sweep's page."""
    return replace(parse(name), seed=0) in _compared_runs()


@cache
def _compared_runs() -> frozenset[Run]:
    """Runs with the default recipe and seed 0 that have the training rows of a run of a sweep."""
    sweeps = [name for name, item in ITEMS.items() if item.kind in ("noise", "size")]
    runs = [with_default_recipe(run) for name in sweeps for run in runs_for(name)]
    return frozenset(replace(run, seed=0) for run in runs)


def _abandoned_runs(results: Results) -> str:
    """Return the section about runs on no page of a table or figure; empty if there are none."""
    used = _used_runs(results)
    lines = [
        [
            name,
            str(results.choices(name)["best"]),
            *(f"{100 * float(line[key]):.2f}" for key in ("val_accuracy", "test_accuracy")),
        ]
        for name, line in results.runs.items()
        if name not in used
    ]
    if not lines:
        return ""
    table = markdown_table(["Run", "best epoch", "validation accuracy", "test accuracy"], lines)
    return f"## Other runs\n\n{_ABANDONED}\n\n{table}"


def _effort(results: Results) -> str:
    lines = list(_used_runs(results).values())
    hours = sum(float(line["seconds"]) for line in lines) / 3600
    devices = ", ".join(sorted({line["device"] for line in lines}))
    torch = ", ".join(sorted({line["torch"] for line in lines}))
    return (
        f"The tables and figures use {len(lines)} of the runs in `paper/results/runs.csv`. Their training "
        f"took {hours:.1f} hours in total ({devices}, PyTorch {torch}). This is the sum of the times of all "
        f"runs, although many of them ran in parallel.{_first_trainings(results)}"
    )


def _first_trainings(results: Results) -> str:
    """State how many runs were trained twice; empty if there are none."""
    first = results.trained_twice
    if not first:
        return ""
    hours = sum(float(line["seconds"]) for line in first.values()) / 3600
    return (
        f" {len(first)} of them were trained twice with the same seed. The tables and figures use the second "
        f"training; the first took another {hours:.1f} hours, and `paper/results/first-trainings` contains "
        "its results."
    )


def _choices(item: Reproduction) -> str:
    """Return a table of accuracy, confidence − accuracy and ECE of the same runs at different epochs."""
    if item.selection is None:
        return ""
    results, (point,) = item.selection.results, item.selection.present
    epochs = [_known_epochs(results, run) for run in point.runs]
    names = ITEMS[item.name]
    head = ["Epoch used", "epoch number", "accuracy", names.low, names.high, *_ECE_HEAD]
    lines = []
    for choice in (choice for choice in EPOCHS if all(choice in known for known in epochs)):
        rows = reproduce_from(results, item.name, choice=choice).rows
        numbers = {known[choice] for known in epochs}
        number = f"{min(numbers)}" if len(numbers) == 1 else f"{min(numbers)} to {max(numbers)}"
        accuracy = first_row(rows, method="Uncal", metric="accuracy", half=None)
        errors = [first_row(rows, method=m, metric="ece", bins=BINS[-1]) for m in ("Uncal", "TS", "CTS")]
        gaps = [_gap(rows, half) for half in ("low", "high")]
        lines.append([EPOCHS[choice], number, mean_and_std(accuracy), *gaps, *map(mean_and_std, errors)])
    note = (
        f"The columns “{names.low}” and “{names.high}” show confidence − accuracy of the uncalibrated "
        f"network by true class, in points, with its 95% interval. ECE uses {BINS[-1]} bins."
    )
    stopped = sum(stopped_early(results, run) for run in point.runs)
    if stopped:
        n = len(point.runs)
        note += (
            f" Early stopping ended {f'all {n}' if stopped == n else f'{stopped} of the {n}'} runs, so the "
            "table leaves out choices that depend on later epochs."
        )
        if stopped < n:
            note += (
                " The other runs were trained to the end; for them, the first row shows the epoch that early "
                "stopping would have chosen."
            )
    return f"{markdown_table(head, lines)}\n\n{note}"


def _known_epochs(results: Results, run: str) -> dict[str, int]:
    """Return the number of the epoch that each choice selects.

    If training stopped early, choices that depend on the epochs after the stop are left out.
    """
    epochs = results.choices(run)
    if not stopped_early(results, run):
        return epochs
    last_phase = parse(run).phase(epochs["last"])[0]
    return {c: e for c, e in epochs.items() if c not in ("best", "last", f"phase{last_phase}")}


def _two_epochs(item: Reproduction) -> str:
    """Compare the best epoch of the second phase with the best of all epochs, in single runs.

    The compared runs were trained to the end. They have the settings of the table's runs, except possibly for
    the weight decay and the seed. Runs of the table itself are compared only if early stopping ended other
    runs of the table.
    """
    if item.selection is None:
        return ""
    results, (point,) = item.selection.results, item.selection.present
    has_all_epochs = not any(stopped_early(results, run) for run in point.runs)
    names = [
        name
        for name in sorted(results.runs, key=lambda name: parse(name).weight_decay)
        if replace(parse(name), seed=0, weight_decay=point.run.weight_decay) == point.run
        and not (has_all_epochs and name in point.runs)
        and {"phase2", "best"} <= results.choices(name).keys()
        and not stopped_early(results, name)
    ]
    lines = [
        [
            f"{parse(name).weight_decay:g}",
            f"{parse(name).seed}",
            EPOCHS[choice],
            str(results.choices(name)[choice]),
            *means_over_runs(results, [name], choice),
        ]
        for name in names
        for choice in ("phase2", "best")
    ]
    if not lines:
        return ""
    low, high = ITEMS[item.name].low, ITEMS[item.name].high
    head = ["Weight decay", "seed", "Epoch used", "epoch number", "accuracy", low, high, *_ECE_HEAD]
    notes = " ".join(
        filter(None, [_later_peak(results, names), *(_other_sign(item, name) for name in names)])
    )
    return f"{_TWO_EPOCHS}\n\n{markdown_table(head, lines)}\n\n{notes}"


def _later_peak(results: Results, names: Sequence[str]) -> str:
    """State how many runs have their best epoch after the second phase."""
    later = sum(results.choices(name)["best"] > results.choices(name)["phase2"] for name in names)
    runs = f"all {later} runs" if later == len(names) else f"{later} of the {len(names)} runs"
    return f"In {runs}, the epoch with the best validation accuracy comes after the second phase."


def _other_sign(item: Reproduction, name: str) -> str:
    """State that the sign of confidence − accuracy of a run depends on the epoch.

    The values are those of the first half of the classes, at the best epoch of the second phase and at the
    best epoch of all. The result is empty if both have the same sign or if the table does not use the run.
    """
    if item.selection is None or name not in item.selection.present[0].runs:
        return ""
    results, label = item.selection.results, ITEMS[item.name].low
    early, best = (results.value(name, "gap", half="low", choice=choice)[0] for choice in ("phase2", "best"))
    if early * best >= 0:
        return ""
    return (
        f"In the run with seed {parse(name).seed}, which {item.name} uses at its early epoch, confidence − "
        f"accuracy of the {label} changes from {100 * early:+.1f} to {100 * best:+.1f} points. Whether the "
        f"{label} are under-confident therefore depends on the choice of the epoch."
    )


def _gap(rows: Sequence[Row], half: str) -> str:
    row = first_row(rows, metric="gap", half=half)
    if row is None:
        return NONE
    interval = "" if row["low"] is None else f" ({signed_interval(row)})"
    return f"{100 * row['mean']:+.1f}{interval}"


def _floors(item: Reproduction) -> str:
    """Describe how much of the max-ECE and of the ECE of CTS in a table is due to chance."""
    if item.selection is None:
        return ""
    (point,) = item.selection.present
    bins = BINS[0]
    table = item.selection.results.classes(point.runs[0], "CTS", bins, item.choice)
    maximum, overall = (
        first_row(item.rows, method="CTS", metric=metric, bins=bins, half=None) or {}
        for metric in ("max_ece", "ece")
    )
    return (
        f"In {item.name}, with {round(float(np.nanmean(table.n_true)))} test rows per class and {bins} "
        "bins, a perfectly calibrated model with the confidences of CTS would have a max-ECE of "
        f"{100 * maximum['floor']:.1f} percent by chance alone. This is "
        f"{100 * maximum['floor'] / maximum['mean']:.0f}% of the observed {100 * maximum['mean']:.1f} "
        f"percent (paper: {100 * maximum['paper']:.1f}). For ECE, chance accounts for "
        f"{100 * overall['floor']:.2f} points of the observed {100 * overall['mean']:.2f} percent."
    )
