"""Recompute the lines of a method in ``paper/results`` after a change of its calibrator.

    python tools/reevaluate.py Auto

The lines are computed from the committed logits. Those of runs whose logits are not committed are removed,
because they belong to the former calibrator.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pandas as pd

import hetcal
from hetcal_paper.evaluate_run import METHODS, evaluate_method
from hetcal_paper.runs import parse
from hetcal_paper.store import Result

RESULTS = Path(__file__).resolve().parent.parent / "paper" / "results"
CHOICE = "best"  # epoch of the committed logits of all runs that were evaluated with slow methods


def read(table: str) -> pd.DataFrame:
    """Read a table of results as text."""
    return pd.read_csv(RESULTS / f"{table}.csv", dtype=str, keep_default_na=False)


def evaluate(name: str, method: str) -> dict[str, pd.DataFrame]:
    """Return the lines of a run, or an empty dictionary if its logits are not committed."""
    path = RESULTS / "logits" / f"{name}.npz"
    if not path.exists():
        return {}
    data: Any = hetcal.load_logits(path)
    arrays = data.val.logits, data.val.labels, data.test.logits, data.test.labels
    return evaluate_method(parse(name), Result({}, *arrays), CHOICE, method)


def main() -> None:
    """Rewrite the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("method", choices=METHODS)
    method = parser.parse_args().method
    old = {table: read(table) for table in ("metrics", "classes")}
    names = old["metrics"].query("method == @method")["run"].unique()
    new = {}
    for name in names:
        new[name] = evaluate(name, method)
        print(name, "recomputed" if new[name] else "removed")
    for table, lines in old.items():
        kept = lines[lines["method"] != method]
        added = [frames[table] for frames in new.values() if frames]
        result = pd.concat([kept, *added]).sort_values("run", kind="stable")
        (RESULTS / f"{table}.csv").write_text(result.to_csv(index=False, lineterminator="\n"), "utf-8")


if __name__ == "__main__":
    main()
