"""The figures of the theory."""

from __future__ import annotations

from typing import Any

import pytest

from hetcal.theory import bound_curve, lemma_curve

pytest.importorskip("matplotlib")
from matplotlib.figure import Figure

from hetcal.theory.figures import bound_figure, lemma_figure


@pytest.fixture
def axes() -> Any:
    return Figure().subplots()


def test_lemma_figure_shows_theory_and_simulation(axes: Any) -> None:
    curve = lemma_curve(noise=[0.0, 0.2], size=50, draws=5)
    lemma_figure(curve, axes)
    assert list(axes.lines[0].get_ydata()) == list(curve.confidence)
    assert len(axes.containers) == 2  # simulated confidence and accuracy, with error bars


def test_bound_figure_has_a_line_for_each_class_count_and_gamma(axes: Any) -> None:
    lines = bound_curve([100, 1000], [2, 10], [0.0, 1.0])
    bound_figure(lines, axes)
    assert [tuple(line.get_ydata()) for line in axes.lines[:4]] == [line.bound for line in lines]
