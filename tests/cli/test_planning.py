"""`hetcal plan` and `hetcal theory`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


def test_theory_writes_json_and_a_figure(run: Any, run_json: Any, tmp_path: Path) -> None:
    rows = run_json("theory", "--draws", 50, "-o", tmp_path / "new")["rows"]
    assert (tmp_path / "new" / "theory.png").stat().st_size > 10_000
    assert {"claim", "promised", "exact", "simulated", "holds"} <= set(rows[0])
    code, out, _ = run("theory", "--draws", 50)
    assert code == 0
    assert "Claim" in out


@pytest.mark.parametrize("option", [[], ["--check-quarter"]])
def test_plan(
    run: Any, sample: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, option: list[str]
) -> None:
    from hetcal import planning

    calls = []

    class Result:
        def __str__(self) -> str:
            return "the plan"

        def to_dict(self) -> dict[str, int]:
            return {"n": 200}

    def compute(name: str) -> Any:
        def function(logits: Any, *_: Any, on_step: Any, **__: Any) -> Result:
            on_step(1, 2)
            calls.append((name, len(logits)))
            return Result()

        return function

    class Axes:
        class figure:  # noqa: N801
            @staticmethod
            def savefig(file: Any, **options: str) -> None:
                file.write(options["format"].encode())

    monkeypatch.setattr(planning, "plan_validation_size", compute("plan"))
    monkeypatch.setattr(planning, "check_quarter", compute("check"))
    monkeypatch.setattr(planning, "plan_figure", lambda _: Axes)
    code, out, _ = run("plan", sample.path, *option)
    assert code == 0
    assert out.startswith("the plan\n")
    assert calls == [("check" if option else "plan", 200)]
    code, out, error = run("plan", sample.path, *option, "--json", "-o", tmp_path / "plan.svg")
    if option:  # a check of a plan draws no curves
        assert (code, out) == (2, "")
        assert "--output" in error
    else:
        assert out.split() == ["{", '"n":', "200", "}"]  # nothing but JSON
    assert (tmp_path / "plan.svg").exists() == (not option)
