"""Columns of tables: class names, class numbers and column order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hetcal._columns import are_numbers, class_names_of, class_positions, column_names, column_order


class Table:
    """A table of a library whose `column_names` is a method."""

    def __init__(self, columns: Any) -> None:
        self.columns = columns

    def column_names(self) -> list[str]:
        return []


def test_column_names() -> None:
    assert column_names(Table(["a", 1])) == ["a", "1"]
    assert column_names(Table(lambda: ["a"])) is None
    assert column_names(np.eye(2)) is None
    assert column_names([[1.0, 2.0]]) is None


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        (["logit_cat", "Prob_dog"], ["cat", "dog"]),
        (["logit_cat", "dog"], ["logit_cat", "dog"]),
        (["logit_1", "z2", "class 3", "-4", "5.0"], ["1", "2", "3", "-4", "5"]),
    ],
)
def test_class_names(columns: list[str], names: list[str]) -> None:
    assert class_names_of(columns) == names


def test_class_positions() -> None:
    assert class_positions(["0", "1", "2"]) is None
    assert class_positions(["cat", "1"]) is None
    assert class_positions(["10", "2"]) == {10: 0, 2: 1}
    with pytest.raises(ValueError, match="'1' and '01'"):
        class_positions(["1", "01"])


def test_whole_numbers_as_class_names() -> None:
    assert are_numbers([1, 2.0, np.int8(3)])
    for names in (["1", "2"], [1, "b"], [1.5, 2.0], [True, False]):
        assert not are_numbers(names)


def test_column_order() -> None:
    assert column_order(["a", "b"], None) is None
    assert column_order(["a", "b"], ["a", "b"]) is None
    assert column_order(["a", "b"], ["b", "a"]).tolist() == [1, 0]  # type: ignore[union-attr]
    assert column_order(None, ["1", "0"]).tolist() == [1, 0]  # type: ignore[union-attr]
    assert column_order(None, ["b", "a"]) is None
    assert column_order(["a", "b"], ["0", "1"]) is None  # numbered columns are matched by position
    for columns in (["a", "c"], ["a", "a"]):
        with pytest.raises(ValueError, match="logits must"):
            column_order(["a", "b"], columns)
