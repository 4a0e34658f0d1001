"""`hetcal plan` and `hetcal theory`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np


def test_theory_writes_json_and_a_figure(run: Any, run_json: Any, tmp_path: Path) -> None:
    rows = run_json("theory", "--draws", 50, "-o", tmp_path / "new")["rows"]
    assert (tmp_path / "new" / "theory.png").stat().st_size > 10_000
    assert {"claim", "promised", "exact", "simulated", "holds"} <= set(rows[0])
    code, out, _ = run("theory", "--draws", 50)
    assert code == 0
    assert "Claim" in out


def test_plan_starts_with_the_summary(run: Any, run_json: Any, sample: Any, tmp_path: Path) -> None:
    figure = tmp_path / "plan.svg"
    result = run_json("plan", sample.path)
    code, out, _ = run("plan", sample.path, "-o", figure)
    assert code == 0
    assert out.splitlines()[0] == result["summary"]
    assert out.splitlines()[-1] == f"wrote {figure}"
    assert figure.stat().st_size > 10_000


def test_the_theorem_is_shown_on_request(run: Any, sample: Any) -> None:
    plain, with_theory = (run("plan", sample.path, *option)[1] for option in ([], ["--theory"]))
    assert "Theorem" not in plain
    assert "Theorem 4.1" in with_theory
    assert set(plain.splitlines()) < set(with_theory.splitlines())


def test_check_of_a_quarter(run: Any, run_json: Any, tmp_path: Path, make_sample: Any) -> None:
    z, y, _ = make_sample(400, 3, 0)
    np.savez(tmp_path / "rows.npz", logits=z, labels=y)
    assert run_json("plan", tmp_path / "rows.npz", "--check-quarter")["n_part"] == 80
    for option in ("--theory", f"--output={tmp_path / 'plan.svg'}"):
        code, out, error = run("plan", tmp_path / "rows.npz", "--check-quarter", option)
        assert (code, out) == (2, "")
        assert option.split("=")[0] in error
    assert not (tmp_path / "plan.svg").exists()
