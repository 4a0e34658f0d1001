"""What an AutoCalibrator is made of, in words."""

from __future__ import annotations

import pytest

from hetcal.calibrators.auto import THEN
from hetcal.stacks import count_text, describe_stack, leading, share_text

_BY = "weighted by cross-validated likelihood"


def table(**weights: float) -> list[dict[str, object]]:
    return [{"name": name.replace("_", ", "), "weight": weight} for name, weight in weights.items()]


@pytest.mark.parametrize(
    ("weights", "text"),
    [
        ({"Identity": 0.0, "TS": 1.0}, "TS, which has the best cross-validated likelihood"),
        (
            {"Identity": 0.004, "TS": 0.996},
            f"nearly one calibrator alone, {_BY}: 100% TS, <1% Identity",
        ),
        (
            {"Identity": 0.006, "TS": 0.0, "C": 0.4, "V_P": 0.594},
            f"a mean of two calibrators, {_BY}: 59% V + P, 40% C, 1% Identity",
        ),
    ],
)  # fmt: skip
def test_a_stack_in_words(weights: dict[str, float], text: str) -> None:
    assert describe_stack(table(**weights)) == text


def test_what_stands_behind_the_mean() -> None:
    text = describe_stack(table(C=0.4, V=0.6), f"60% V; 40% C{THEN}")
    assert text == f"a mean of two calibrators, {_BY}, with class-wise Platt scaling behind it: 60% V, 40% C"


def test_leading_candidates_have_more_than_a_trace() -> None:
    found = leading(table(a=0.014, b=0.2, c=0.0, d=0.786))
    assert [c["name"] for c in found] == ["d", "b"]


def test_numbers_in_words() -> None:
    assert [share_text(w) for w in (0.0, 0.001, 0.0049, 0.0051, 0.515, 1.0)] == [
        *("–", "<1%", "<1%", "1%", "52%", "100%")
    ]
    assert [count_text(n) for n in (2, 10, 11, 1234)] == ["two", "ten", "11", "1,234"]
