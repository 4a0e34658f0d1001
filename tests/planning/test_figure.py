"""The chart of a plan."""

from __future__ import annotations

from typing import Any

import pytest

from hetcal.planning import ValidationPlan, plan_figure


@pytest.mark.parametrize("metric", ["nll", "max_ece"])
def test_figure(plan: ValidationPlan, metric: Any) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    before = dict(matplotlib.rcParams)
    _, axes = plt.subplots()
    ax = plan_figure(plan, axes, metric=metric)
    assert ax is axes
    assert [t.get_text() for t in ax.get_legend().get_texts()] == [m.name for m in plan.methods]
    low, high = ax.get_ylim()
    late = [(m.nll if metric == "nll" else m.max_ece_excess)[-1] for m in plan.methods]
    assert low < min(late) <= max(late) < high
    assert plan_figure(plan).figure is not axes.figure
    plt.close("all")
    assert dict(matplotlib.rcParams) == before
    with pytest.raises(ValueError, match="metric must"):
        plan_figure(plan, metric="ece")  # type: ignore[arg-type]
