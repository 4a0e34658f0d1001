"""Plans as text and as JSON."""

from __future__ import annotations

import json
import math

from hetcal.planning import ValidationPlan
from hetcal.planning.text import count_text


def test_plan_as_text_and_json(plan: ValidationPlan) -> None:
    printed = str(plan)
    assert all(method.name in printed for method in plan.methods)
    assert all(c.advice in printed for c in plan.classes)
    data = json.loads(json.dumps(plan.to_dict(), allow_nan=False))
    assert [m["method"] for m in data["methods"]] == ["TS", "CTS Γ=0.1", "CTS bayes", "CTS"]
    assert data["methods"][0]["rows_to_target"]["value"] is None
    assert data["methods"][0]["beats_pooled_from"] is None
    assert data["methods"][2]["bound"] is None
    assert data["methods"][3]["bound"]["gamma"] is None
    assert len(data["classes"]) == 4
    assert data["best"] == plan.best.name


def test_counts_as_text() -> None:
    texts = [count_text(rows) for rows in (3.2, 999.5, 1234.0, 123_456.0, 3.4e12, math.inf)]
    assert texts == ["4", "1,000", "1,230", "123,000", "3e12", "never"]
