from __future__ import annotations

import pytest

from hetcal._format import count_word, number, percent, points, round_up, share


@pytest.mark.parametrize(
    ("value", "text"), [(0.123, "+12.3"), (-0.04, "−4.0"), (-0.0001, "0.0"), (float("nan"), "–"), (None, "–")]
)
def test_points(value: float | None, text: str) -> None:
    assert points(value) == text


def test_missing_values_are_a_dash() -> None:
    assert {f(v) for f in (percent, number, points) for v in (None, float("nan"))} == {"–"}
    assert (percent(0.0123), percent(0.0123, 2), number(0.5)) == ("1.2%", "1.23%", "0.500")


def test_shares_and_counts() -> None:
    weights = (0.0, 0.001, 0.0049, 0.0051, 0.515, 1.0)
    assert [share(w) for w in weights] == ["–", "<1%", "<1%", "1%", "52%", "100%"]
    assert [count_word(n) for n in (2, 10, 11, 1234)] == ["two", "ten", "11", "1,234"]


def test_round_up_keeps_two_digits() -> None:
    assert [round_up(n) for n in (7, 98.5, 101, 110, 12_001)] == [7, 99, 110, 110, 13_000]
