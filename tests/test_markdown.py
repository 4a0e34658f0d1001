from __future__ import annotations

from hetcal._markdown import code_block, escape, table


def test_table_aligns_numbers_to_the_right() -> None:
    assert table(["a", "b"], [["x", "1"]]) == ["| a | b |", "| --- | ---: |", "| x | 1 |", ""]


def test_escape_leaves_no_markup() -> None:
    assert escape("a|b <i> `c` _d_") == r"a\|b \<i\> \`c\` \_d\_"


def test_fence_is_longer_than_any_run_of_backticks() -> None:
    assert code_block(["plain"]) == ["```", "plain", "```"]
    assert code_block(["a ```` b"])[0] == "`````"
