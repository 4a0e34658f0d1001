"""Validation of scalar arguments."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hetcal.theory._arguments import check_alpha_range, check_integer, check_number


def test_valid_scalars_become_python_numbers() -> None:
    assert type(check_integer(np.int32(3), "n", minimum=3, maximum=3)) is int
    assert type(check_number(np.float32(0.5), "p", minimum=0.5, maximum=0.5)) is float
    assert check_number(1, "p", above=0, below=2) == 1.0


@pytest.mark.parametrize("value", [1.0, "1", None, True, [1]])
def test_non_integers_raise_a_type_error(value: object) -> None:
    with pytest.raises(TypeError, match=r"^n must be an integer, got .*; count the rows"):
        check_integer(value, "n", remedy="count the rows")


@pytest.mark.parametrize("value", ["1", None, True, [1.0], 1j])
def test_non_numbers_raise_a_type_error(value: object) -> None:
    with pytest.raises(TypeError, match=r"^p must be a number, got "):
        check_number(value, "p")


@pytest.mark.parametrize("value", [1, 5])
def test_integers_outside_the_limits(value: int) -> None:
    with pytest.raises(ValueError, match=f"^n must .* got {value}"):
        check_integer(value, "n", minimum=2, maximum=4)


@pytest.mark.parametrize(
    ("value", "limits"),
    [
        (math.nan, {}),
        (math.inf, {}),
        (-0.1, {"minimum": 0}),
        (1.1, {"maximum": 1}),
        (0.0, {"above": 0}),
        (1.0, {"above": 0, "below": 1}),
    ],
)
def test_numbers_outside_the_limits(value: float, limits: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"^p must .* got {value}"):
        check_number(value, "p", **limits)


def test_alpha_range_is_a_pair_or_a_width() -> None:
    assert check_alpha_range((1, 3)) == check_alpha_range([1, 3]) == check_alpha_range(2) == 2.0
    for invalid in ((1,), (3, 1), (0, math.inf), -1.0):
        with pytest.raises(ValueError, match=r"^alpha_range"):
            check_alpha_range(invalid)
    with pytest.raises(TypeError, match=r"^alpha_range must be a number"):
        check_alpha_range("a")
