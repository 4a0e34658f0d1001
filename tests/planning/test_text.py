"""Plans as text and as JSON."""

from __future__ import annotations

import json
import math
from dataclasses import replace

from hetcal.planning import ClassAdvice, ValidationPlan
from hetcal.planning.class_advice import Advice
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


def test_the_summary_starts_the_text(plan: ValidationPlan) -> None:
    assert str(plan).splitlines()[0] == plan.summary == plan.to_dict()["summary"]
    assert "Theorem" not in str(plan)
    assert "Theorem 4.1" in plan.to_text(theory=True)


def advice(n: int, kind: Advice, more_rows: int = 0) -> ClassAdvice:
    return ClassAdvice(f"c{n}", 0, n, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, kind, "", more_rows)


def test_summary_names_the_classes_that_need_rows(plan: ValidationPlan) -> None:
    enough = plan["TS"].rows_to_limit.value <= plan.n
    assert enough
    few = [advice(k, Advice.MORE_ROWS, 40) for k in (1, 2, 3)]
    classes = (*few, *(advice(k, Advice.OWN) for k in range(4, 11)))
    text = replace(plan, classes=classes).summary
    assert all(part in text for part in ("Enough", "about 40 ", "3 of 10 ", "(c1, c2, c3)"))
    many = tuple(advice(k, Advice.MORE_ROWS, 10 * k) for k in range(1, 7))
    text = replace(plan, classes=many).summary
    assert all(part in text for part in ("10 to 60 ", "all 6 ", "(c1, c2, c3 and 3 more)"))


def test_summary_of_decided_classes(plan: ValidationPlan) -> None:
    own, pool, unseen = advice(9, Advice.OWN), advice(8, Advice.POOL), advice(0, Advice.POOL)
    text = replace(plan, classes=(own, pool)).summary
    assert "no more rows" in text
    assert "1 of 2 classes" in text
    text = replace(plan, classes=(pool, unseen)).summary
    assert "no class needs" in text
    assert "1 of 2 classes (c0)" in text


def test_summary_of_too_few_rows_and_without_a_pooled_method(plan: ValidationPlan) -> None:
    needed = plan["TS"].rows_to_limit.value
    n = int(needed) - 5
    text = replace(plan, n=n, classes=(advice(9, Advice.POOL),)).summary
    more = count_text(needed - n)
    assert f" {more} more rows" in text
    assert "Enough" not in text
    assert replace(plan, pooled=None).summary[0].isupper()
    assert "one temperature" not in replace(plan, pooled=None).summary.lower()


def test_counts_as_text() -> None:
    texts = [count_text(rows) for rows in (3.2, 999.5, 1234.0, 123_456.0, 3.4e12, math.inf)]
    assert texts == ["4", "1,000", "1,230", "123,000", "3e12", "never"]
