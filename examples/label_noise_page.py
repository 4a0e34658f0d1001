"""Write the page about wrong validation labels. Every number in it comes from the table of results."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import page_parts
from clinc150_figures import STYLE, save_svg
from matplotlib.figure import Figure
from tidy import Table, write_atomic

from hetcal._palette import GREY, INK, PALETTE

__all__ = ["COLUMNS", "RATES", "text_table", "write_page"]

COLUMNS = ("dataset", "seed", "rate", "method", "labels", "metric")
RATES = (0.0, 0.1, 0.2, 0.3)
_DATASETS = ("CIFAR-10", "CIFAR-100")
_METHODS = ("TS", "CTS", "CTS bayes", "VS", "Auto")
_CONDITIONS = {
    "clean": ("clean labels", INK),
    "uncorrected": ("noisy labels", PALETTE["vermilion"]),
    "known": ("noisy labels, T known", PALETTE["blue"]),
    "estimated": ("noisy labels, T estimated", PALETTE["green"]),
}
_FEWER = "fewer"  # condition with as much information as the noisy labels; not in the figure
_DESIGN_SEEDS = ("0", "1")  # networks on which the corrections of TS and CTS were chosen

_HEAD = """# When labels are wrong

<!-- Written by examples/label_noise.py from results/label_noise.csv; do not edit by hand. -->

Calibration compares the confidence of predictions with labels. If some validation labels are wrong, even a
perfect model disagrees with them. It then looks over-confident, and calibration makes it under-confident. If
the training labels of a model are noisy, its validation labels often are, too. This page shows how to
calibrate and evaluate a model with such labels.

![ECE on clean test rows after calibration on noisy validation labels](images/label-noise.svg)

## Say how wrong the labels are

Pass `transition=` to `fit`, to the metrics and to `diagnose`. It is a matrix T whose entry `T[i, j]` is the
probability that a row of class i has the label j:

```python
>>> import numpy as np
>>> import hetcal
>>> example = hetcal.load_example("cifar10-noisy")
>>> rng = np.random.default_rng(0)
>>> rates = np.array([0.3] * 5 + [0.0] * 5)  # 30% of the labels of the first five classes are random
>>> is_random = rng.random(len(example.val.labels)) < rates[example.val.labels]
>>> noisy = np.where(is_random, rng.integers(0, 10, size=len(is_random)), example.val.labels)
>>> calibrators = {
...     "clean labels": hetcal.AutoCalibrator().fit(example.val.logits, example.val.labels),
...     "noisy labels": hetcal.AutoCalibrator().fit(example.val.logits, noisy),
...     "with transition": hetcal.AutoCalibrator().fit(example.val.logits, noisy, transition=rates),
... }
>>> for name, calibrator in calibrators.items():
...     probs = calibrator.predict_proba(example.test.logits)
...     print(f"{name}: ECE {100 * hetcal.metrics.ece(probs, example.test.labels):.1f}%")
clean labels: ECE 0.9%
noisy labels: ECE 10.7%
with transition: ECE 0.7%

```

Instead of a matrix, `transition=` accepts one noise rate per class, as here, or one for all classes. A noise
rate is the probability with which a label of the class was replaced by a uniformly random one of all K
classes. `hetcal fit`, `hetcal diagnose` and `hetcal evaluate` have the options `--noise-rate` and
`--transition FILE`.

With `transition=`, most calibrators maximise the likelihood of the observed labels: an observed label j has
the probability Σᵢ p[i] T[i, j], where p are the calibrated probabilities of the row. There are some
exceptions. Isotonic regression and histograms correct the accuracy of their bins instead. The maximum of the
likelihood favours classes with little noise; `TemperatureScaling` and `PlattScaling` correct this bias (see
the notes of `fit`). If noise can explain all errors in a class, its labels hardly limit the temperature;
`ClassWiseTemperatureScaling` therefore adds a pseudo-observation to every class with noise, unless Γ is 0 or
"bayes". With `loss="brier"` or `loss="ece"`, both kinds of temperature scaling minimise the corrected loss
instead. All calibrators of hetcal support `transition=`, but only for rows in memory. The metrics and the
verdicts of `diagnose` take into account that a wrong label can disagree with a correct prediction.

## If you do not know how wrong they are

`hetcal.label_noise.estimate_transition` estimates T. The best source of information is a set of rows whose
labels somebody has checked, about 20 per class:

```python
>>> _, checked = hetcal.corruption.stratified_split(noisy, 20, rng)  # 20 rows with each observed label
>>> trusted = np.full(len(noisy), -1)  # -1: not checked
>>> trusted[checked] = example.val.labels[checked]
>>> estimate = hetcal.label_noise.estimate_transition(example.val.logits, noisy, trusted=trusted)
>>> print(estimate.rates.round(1))
[0.3 0.3 0.3 0.1 0.2 0.  0.  0.  0.  0. ]
>>> calibrator = hetcal.AutoCalibrator().fit(example.val.logits, noisy, transition=estimate)
>>> probs = calibrator.predict_proba(example.test.logits)
>>> print(f"ECE {100 * hetcal.metrics.ece(probs, example.test.labels):.1f}%")
ECE 1.3%

```

The true noise rates are 0.3 for the first five classes and 0 for the others. With so few checked rows, the
estimates are not precise, but the correction removes most of the calibration error.

`estimate_transition` also accepts the labels of several annotators (`annotators=`). It can even estimate T
from the predictions and the observed labels alone. These often do not suffice to distinguish wrong labels
from miscalibration, and `estimate_transition` then raises an error. In that case,
`hetcal.label_noise.sensitivity` shows which verdicts depend on the share of wrong labels:

```python
>>> test, names = example.test, example.class_names
>>> result = hetcal.label_noise.sensitivity(test.logits, test.labels, class_names=names)
>>> print(result.sentences[7])
horse: over-confident unless more than 1.2% of the labels are wrong

```

If several people labelled each row, pass the counts of their votes, or a distribution over the classes, as
`labels` of shape (n, K), both to `fit` and to the metrics. Then the calibrated probabilities describe how
people label, and no transition is needed.
"""
_SETTING = """The networks were trained with 30% label noise in half of the classes ({networks}). We
corrupt the validation labels of the same classes, too: a fraction of them, the *noise*, is redrawn uniformly
from all classes. Calibrators are fitted to the clean labels, to the noisy labels, to the noisy labels with
the true T, and to the noisy labels with an estimated T. The estimate uses the true labels of 20 rows with
each observed label. Noisy labels contain less information than clean ones. To see how much that costs,
calibrators are also fitted to the clean labels of *fewer rows*. These are a random part of the rows of every
predicted class. The part is so large that its clean labels contain as much Fisher information about the
calibrated logits as the noisy labels of all rows of the class. All calibrators are evaluated on clean test
rows. The methods are `TemperatureScaling()` (*TS*), `ClassWiseTemperatureScaling()` (*CTS*),
`ClassWiseTemperatureScaling("bayes")` (*CTS bayes*), `VectorScaling()` (*VS*) and `AutoCalibrator()`
(*Auto*)."""
_RESULT = """At 30% noise, `AutoCalibrator` has an ECE of {c10_uncorrected}% on CIFAR-10 and
{c100_uncorrected}% on CIFAR-100 if the noise is ignored. With the true T, the ECE is {c10_known}% and
{c100_known}%; with the estimated T, it is {c10_estimated}% and {c100_estimated}%. With clean labels, it is
{c10_clean}% and {c100_clean}%. All numbers are means over the networks."""
_DISTANCE = """How much worse are the corrected fits than fits to clean labels? At 10% to 30% noise, the ECE
of any method is at most {known_ece} points higher with the true T, and at most {estimated_ece} points higher
with the estimated T. The NLL is at most {known_nll} and {estimated_nll} higher, respectively. Part of this
increase is unavoidable, because noisy labels contain less information. On CIFAR-100 with 30% noise, the NLL
is {vs_c100_known} (*VS*) and {auto_c100_known} (*Auto*) higher with the true T, and {vs_c100_fewer} and
{auto_c100_fewer} higher with the clean labels of fewer rows. On CIFAR-10, the NLL of *Auto* is
{auto_c10_known} higher with the true T, and {auto_c10_fewer} higher with fewer rows. For *TS* and *CTS*, the
corrected fits can be better than fits to fewer rows. With fewer rows, the noisy classes have too little
influence on the single temperature of *TS*, and too few errors to fit their temperatures with *CTS*. The
corrections of *TS* and *CTS* prevent this. Without noise, the estimated T increases the ECE of any
method by at most {harm_ece} points and the NLL by at most {harm_nll}."""
_DESIGN = """The corrections of *TS* and *CTS* were chosen on the networks with the seeds 0 and 1. On the
other networks, with the true T, the ECE of *TS* is at most {ts_ece} points and its NLL at most {ts_nll}
higher than with clean labels. For *CTS*, these numbers are {cts_ece} points and {cts_nll}."""
_VERDICTS = """We apply `diagnose` to well calibrated networks (`AutoCalibrator`, fitted to clean labels), but
with noisy test labels. A class is *flagged* if its verdict is over- or under-confident. Without T, more
classes are flagged because the noise makes them look over-confident. With the true T, about as few are
flagged as without noise. The table shows the mean number of flagged classes:"""
_HUMANS = """CIFAR-10H (Peterson et al. 2019) contains about 50 human labels for each test image of
CIFAR-10. We measure how well the {n_networks} CIFAR-10 networks predict how people label. Calibrators are
fitted to the usual validation labels, or to the votes of the people on every second test image. They are
evaluated on the votes on the other test images."""


def text_table(table: Table) -> str:
    """Return the mean ECE and NLL of every method and condition as text."""
    lines = []
    for dataset in _DATASETS:
        for rate in RATES:
            lines += ["", f"{dataset}, {100 * rate:.0f}% noise: ECE and NLL on clean test rows"]
            for method in _METHODS:
                cells = "  ".join(
                    f"{condition} {_percent(table, dataset, rate, method, condition):>5} "
                    f"{_value(table, dataset, rate, method, condition, 'nll'):.4f}"
                    for condition in (*_CONDITIONS, _FEWER)
                )
                lines.append(f"  {method:<10}{cells}")
    return "\n".join(lines)


def write_page(table: Table, docs: Path) -> Path:
    """Write the page and its figure into the documentation folder and return the path of the page."""
    _draw(table, docs / "images" / "label-noise.svg")
    parts = [_HEAD, "## On CIFAR\n", page_parts.paragraph(_SETTING.format(networks=_networks(table)))]
    parts.append(page_parts.paragraph(_RESULT.format(**_at_most_noise(table))))
    for dataset in _DATASETS:
        parts += [f"ECE in percent, with the NLL in parentheses, on {dataset}:\n", _table(table, dataset)]
    judged = Table(COLUMNS, (line for line in table.lines if line.keys[1] not in _DESIGN_SEEDS))
    parts.append(page_parts.paragraph(_DISTANCE.format(**_distances(table))))
    parts.append(page_parts.paragraph(_DESIGN.format(**_distances_by_method(judged))))
    parts += ["## Verdicts\n", page_parts.paragraph(_VERDICTS), _verdicts(table)]
    if table.has("CIFAR-10H", "0", "Uncal", "labels", "ece"):
        n_networks = len(table.values("CIFAR-10H", "0", "Uncal", "labels", "ece"))
        parts += ["## Human labels\n", page_parts.paragraph(_HUMANS.format(n_networks=n_networks))]
        parts.append(_humans(table))
    page = docs / "label-noise.md"
    write_atomic(page, "\n".join(parts))
    return page


def _networks(table: Table) -> str:
    counts = {d: len(table.names("seed", dataset=d)) for d in _DATASETS}
    return f"{counts['CIFAR-10']} ResNet-20 on CIFAR-10, {counts['CIFAR-100']} WideResNet-28-10 on CIFAR-100"


def _value(table: Table, dataset: str, rate: float, method: str, condition: str, metric: str) -> float:
    return table.mean(dataset, f"{rate:g}", method, condition, metric)


def _percent(table: Table, dataset: str, rate: float, method: str, condition: str) -> str:
    return f"{100 * _value(table, dataset, rate, method, condition, 'ece'):.1f}"


def _at_most_noise(table: Table) -> dict[str, str]:
    return {
        f"{short}_{condition}": _percent(table, dataset, RATES[-1], "Auto", condition)
        for short, dataset in (("c10", "CIFAR-10"), ("c100", "CIFAR-100"))
        for condition in _CONDITIONS
    }


def _increase(table: Table, dataset: str, rate: float, method: str, condition: str, metric: str) -> float:
    """Return how much larger the metric is than for the fit to clean labels."""
    return _value(table, dataset, rate, method, condition, metric) - _value(
        table, dataset, rate, method, "clean", metric
    )


def _largest(
    table: Table, condition: str, metric: str, methods: tuple[str, ...], rates: tuple[float, ...]
) -> float:
    return max(
        _increase(table, dataset, rate, method, condition, metric)
        for dataset in _DATASETS
        for method in methods
        for rate in rates
    )


def _distances(table: Table) -> dict[str, str]:
    """Return the largest increases over the fit to clean labels, by condition and metric."""
    noisy, clean = RATES[1:], RATES[:1]
    texts = {
        f"{method.lower()}_{short}_{condition}": (
            f"{_increase(table, dataset, RATES[-1], method, condition, 'nll'):.3f}"
        )
        for short, dataset in (("c10", "CIFAR-10"), ("c100", "CIFAR-100"))
        for method in ("VS", "Auto")
        for condition in ("known", _FEWER)
    }
    for condition in ("known", "estimated"):
        texts[f"{condition}_ece"] = f"{100 * _largest(table, condition, 'ece', _METHODS, noisy):.1f}"
        texts[f"{condition}_nll"] = f"{_largest(table, condition, 'nll', _METHODS, noisy):.3f}"
    texts["harm_ece"] = f"{100 * _largest(table, 'estimated', 'ece', _METHODS, clean):.1f}"
    texts["harm_nll"] = f"{_largest(table, 'estimated', 'nll', _METHODS, clean):.3f}"
    return texts


def _distances_by_method(table: Table) -> dict[str, str]:
    """Return the largest increases of TS and CTS with the true T, by metric."""
    texts = {}
    for method in ("TS", "CTS"):
        ece = _largest(table, "known", "ece", (method,), RATES[1:])
        nll = _largest(table, "known", "nll", (method,), RATES[1:])
        texts |= {f"{method.lower()}_ece": f"{100 * ece:.1f}", f"{method.lower()}_nll": f"{nll:.4f}"}
    return texts


def _table(table: Table, dataset: str) -> str:
    head = ["Noise", "Method", *(label for label, _ in _CONDITIONS.values()), "clean labels, fewer rows"]
    rows = [
        [
            f"{100 * rate:.0f}%",
            method,
            *(
                f"{_percent(table, dataset, rate, method, condition)} "
                f"({_value(table, dataset, rate, method, condition, 'nll'):.3f})"
                for condition in (*_CONDITIONS, _FEWER)
            ),
        ]
        for rate in RATES
        for method in _METHODS
    ]
    return page_parts.table(head, rows)


def _verdicts(table: Table) -> str:
    head = ["Data set", "Noise", "classes flagged without T", "classes flagged with T", "classes"]
    rows = [
        [
            dataset,
            f"{100 * rate:.0f}%",
            *(f"{_value(table, dataset, rate, 'Auto', c, 'flagged'):.1f}" for c in ("uncorrected", "known")),
            dataset.split("-")[1],
        ]
        for dataset in _DATASETS
        for rate in RATES
    ]
    return page_parts.table(head, rows)


def _humans(table: Table) -> str:
    def cell(method: str, condition: str) -> str:
        key = ("CIFAR-10H", "0", method, condition)
        return f"{100 * table.mean(*key, 'ece'):.1f} ({table.mean(*key, 'nll'):.3f})"

    head = ["Method", "fitted to validation labels: ECE (NLL)", "fitted to votes: ECE (NLL)"]
    rows = [[method, cell(method, "labels"), cell(method, "votes")] for method in ("Uncal", *_METHODS)]
    return page_parts.table(head, rows)


def _draw(table: Table, path: Path) -> None:
    """Draw the ECE of AutoCalibrator by noise rate, with its floor, one panel per data set."""
    percent = [100 * rate for rate in RATES]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9.4, 3.4), layout="constrained")
        for ax, dataset in zip(figure.subplots(1, 2, sharey=True), _DATASETS, strict=True):
            for condition, (label, colour) in _CONDITIONS.items():
                keys = [(dataset, f"{rate:g}", "Auto", condition, "ece") for rate in RATES]
                mean, std = ([100 * f(*key) for key in keys] for f in (table.mean, table.std))
                ax.errorbar(
                    percent,
                    mean,
                    yerr=std,
                    label=label,
                    color=colour,
                    marker="o",
                    markersize=4.5,
                    linewidth=1.4,
                )
            floor = [100 * table.floor(dataset, f"{rate:g}", "Auto", "clean", "ece") for rate in RATES]
            ax.plot(percent, floor, "--", color=GREY, linewidth=1.2, label="noise floor")
            ax.set_title(dataset, loc="left", color=INK)
            ax.set_xlabel("redrawn validation labels of half of the classes (%)")
            ax.set_xticks(percent)
            ax.set_ylim(bottom=0)
        figure.axes[0].set_ylabel("ECE on clean test rows (%)")
        figure.axes[0].legend(loc="upper left", frameon=False)
        save_svg(figure, path)
