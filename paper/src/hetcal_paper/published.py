"""The published numbers and claims: what each table and figure of the paper shows.

Nothing here is computed. All numbers come from the tables, captions and text of the paper, as fractions.
Figures for which the paper prints no numbers have no numbers here either.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = [
    "AVERAGES",
    "EXAMPLE",
    "EXAMPLE_ACCURACY",
    "ITEMS",
    "NAMES",
    "TABLES",
    "Example",
    "Halves",
    "Item",
    "Kind",
]

Kind = Literal["table", "trainings", "sampling", "halves", "noise", "size", "classes", "example"]


@dataclass(frozen=True)
class Halves:
    """The two halves of the classes.

    Attributes
    ----------
    low, high : str
        Names of the first and the second half.
    corruption : {"noise", "sampling"} or None
        What was done to the training rows of the first half: label noise was added, or only a sample of them
        was used. None if both halves were treated alike.
    """

    low: str
    high: str
    corruption: Literal["noise", "sampling"] | None = None


@dataclass(frozen=True)
class Item:
    """One table or figure of the paper, or the example of its Section 5.4.

    Attributes
    ----------
    kind : str
        Determines which rows, claims and tables the item has, and how its figure is drawn.
    title : str
    data : {"c10", "c100"} or None
        The data set; None if nothing is trained.
    halves : Halves
        How the classes are divided.
    paper : str
        What the item shows according to the paper.
    """

    kind: Kind
    title: str
    data: str | None
    halves: Halves
    paper: str

    @property
    def low(self) -> str:
        """Name of the first half of the classes."""
        return self.halves.low

    @property
    def high(self) -> str:
        """Name of the second half of the classes."""
        return self.halves.high


@dataclass(frozen=True)
class Example:
    """Confidence and ECE of each of the two classes in the example of Section 5.4, and the ECE over both."""

    confidence: tuple[float, float]
    class_ece: tuple[float, float]
    ece: float


_NOISY = Halves("noisy classes", "clean classes", "noise")
_UNDER_SAMPLED = Halves("under-sampled classes", "fully sampled classes", "sampling")
_HALVES = Halves("first half of the classes", "second half of the classes")
_FIG1 = (
    "A network trained on clean data is over-confident, and one trained on few samples even more so; one "
    "trained with label noise is under-confident."
)
_FIG2 = "Fewer training samples increase over-confidence, because accuracy falls faster than confidence."
_FIG5 = "CTS has lower ECE and max-ECE than TS, and the difference grows with the noise rate."
_FIG6 = (
    "In every class, CTS and VS have lower ECE than TS and than no calibration. VS raises the "
    "classification error of noisy classes and lowers that of clean classes."
)
_FIG7 = "TS inflates the calibration errors of the under-sampled classes; CTS improves all classes."
_FIG8 = "CTS has lower max-ECE and Avg-ECE than TS at all rates; TS sometimes has lower ECE."
_TABLE = "CTS and VS have lower ECE and max-ECE than TS and than no calibration; VS changes the accuracy."

#: All tables and figures in the order of the paper, followed by the example of Section 5.4.
ITEMS: dict[str, Item] = {
    "fig1": Item("trainings", "Confidence and data quality, CIFAR-100", "c100", _HALVES, _FIG1),
    "fig2": Item("sampling", "Confidence and size of the training set, CIFAR-100", "c100", _HALVES, _FIG2),
    "fig3": Item(
        "halves",
        "30% label noise on half of the classes, CIFAR-100",
        "c100",
        _NOISY,
        "Noisy classes are under-confident, clean classes over-confident (classes by true label).",
    ),
    "fig4": Item(
        "halves",
        "10% of the samples of half of the classes, CIFAR-100",
        "c100",
        _UNDER_SAMPLED,
        "Under-sampled classes are more over-confident than fully sampled ones (classes by true label).",
    ),
    "fig5": Item("noise", "Calibration error by noise rate, CIFAR-100", "c100", _NOISY, _FIG5),
    "table1": Item(
        "table", "Methods with 30% label noise on classes 0-49, CIFAR-100", "c100", _NOISY, _TABLE
    ),
    "fig6": Item(
        "classes", "Individual classes with 30% label noise on classes 0-49, CIFAR-100", "c100", _NOISY, _FIG6
    ),
    "table2": Item("table", "Methods with 30% label noise on classes 0-4, CIFAR-10", "c10", _NOISY, _TABLE),
    "fig7": Item(
        "classes",
        "Individual classes with 5% of the samples of classes 0-49, CIFAR-100",
        "c100",
        _UNDER_SAMPLED,
        _FIG7,
    ),
    "fig8": Item("size", "Calibration error by sampling rate, CIFAR-100", "c100", _UNDER_SAMPLED, _FIG8),
    "fig9": Item("trainings", "Confidence and data quality, CIFAR-10", "c10", _HALVES, _FIG1),
    "fig10": Item("noise", "Calibration error by noise rate, CIFAR-10", "c10", _NOISY, _FIG5),
    "fig11": Item(
        "classes", "Individual classes with 30% label noise on classes 0-4, CIFAR-10", "c10", _NOISY, _FIG6
    ),
    "fig12": Item("sampling", "Confidence and size of the training set, CIFAR-10", "c10", _HALVES, _FIG2),
    "fig13": Item(
        "classes",
        "Individual classes with 6% of the samples of classes 0-4, CIFAR-10",
        "c10",
        _UNDER_SAMPLED,
        _FIG7,
    ),
    "fig14": Item("size", "Calibration error by sampling rate, CIFAR-10", "c10", _UNDER_SAMPLED, _FIG8),
    "example": Item(
        "example",
        "Two-class example of Section 5.4: lower class-wise ECE, higher overall ECE",
        None,
        _HALVES,
        "CTS has the lower ECE in each class (0.02 against 0.08); over both classes, the ECE of TS is 0 and "
        "that of CTS is 0.02.",
    ),
}

NAMES = tuple(ITEMS)

#: Tables 1 and 2: accuracy, ECE and max-ECE, each as mean and standard deviation over five seeds.
TABLES: dict[str, dict[str, dict[str, tuple[float, float]]]] = {
    "table1": {
        "Uncal": {"accuracy": (0.7153, 0.0013), "ece": (0.0378, 0.0030), "max_ece": (0.3683, 0.0430)},
        "VS": {"accuracy": (0.7282, 0.0022), "ece": (0.0326, 0.0021), "max_ece": (0.1830, 0.0131)},
        "TS": {"accuracy": (0.7153, 0.0013), "ece": (0.0364, 0.0022), "max_ece": (0.3274, 0.0217)},
        "CTS": {"accuracy": (0.7153, 0.0013), "ece": (0.0321, 0.0026), "max_ece": (0.2370, 0.0334)},
    },
    "table2": {
        "Uncal": {"accuracy": (0.8698, 0.0045), "ece": (0.0650, 0.0046), "max_ece": (0.2109, 0.0049)},
        "VS": {"accuracy": (0.8727, 0.0039), "ece": (0.0131, 0.0011), "max_ece": (0.0437, 0.0056)},
        "TS": {"accuracy": (0.8698, 0.0045), "ece": (0.0369, 0.0033), "max_ece": (0.1385, 0.0064)},
        "CTS": {"accuracy": (0.8698, 0.0045), "ece": (0.0119, 0.0025), "max_ece": (0.0546, 0.0098)},
    },
}

#: Mean confidence and accuracy by sampling rate (captions of Figures 2 and 12) or by half of the classes
#: (text about Figures 3 and 4).
AVERAGES: dict[str, dict[float | str, tuple[float, float]]] = {
    "fig2": {0.05: (0.658, 0.295), 0.1: (0.726, 0.422), 0.6: (0.832, 0.763), 1.0: (0.843, 0.809)},
    "fig3": {"low": (0.627, 0.689), "high": (0.781, 0.768)},
    "fig4": {"low": (0.728, 0.396), "high": (0.909, 0.841)},
    "fig12": {0.02: (0.805, 0.538), 0.1: (0.905, 0.757), 0.4: (0.947, 0.869), 1.0: (0.960, 0.915)},
}

#: Section 5.4: the accuracies of two classes of equal size, and the results of two methods.
EXAMPLE_ACCURACY = (0.52, 0.48)
EXAMPLE = {
    "TS": Example(confidence=(0.6, 0.4), class_ece=(0.08, 0.08), ece=0.0),
    "CTS": Example(confidence=(0.54, 0.5), class_ece=(0.02, 0.02), ece=0.02),
}
