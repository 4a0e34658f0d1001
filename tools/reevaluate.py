"""Recompute the lines of a method in ``paper/results`` after a change of its calibrator.

    python tools/reevaluate.py Auto
    python tools/reevaluate.py Auto --runs c10-
    python tools/reevaluate.py Auto --keep
    python tools/reevaluate.py CTS-cv --add table1 --add table2

The lines are computed from the committed logits, which are those of the epoch that represents the run. All
other lines of the method are removed, because they belong to the former calibrator. With ``--keep``, they
stay; the pages of the sweeps then name the commit of the calibrator. With ``--runs``, only runs whose names
start with a text are affected, for a change that does not concern the others. With
``--add``, nothing is recomputed or removed: the method is evaluated for the runs of a table or figure that do
not have it yet.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import hetcal
from hetcal_paper.evaluate_run import METHODS, evaluate_method
from hetcal_paper.results import read_results
from hetcal_paper.runs import parse, runs_for
from hetcal_paper.store import Result

RESULTS = Path(__file__).resolve().parent.parent / "paper" / "results"


def read(table: str) -> pd.DataFrame:
    """Read a table of results as text."""
    return pd.read_csv(RESULTS / f"{table}.csv", dtype=str, keep_default_na=False)


def evaluate(name: str, method: str) -> dict[str, pd.DataFrame]:
    """Return the lines of a run, or an empty dictionary if its logits are not committed."""
    path = RESULTS / "logits" / f"{name}.npz"
    if not path.exists():
        return {}
    run, epochs = parse(name), read_results(RESULTS).choices(name)
    choice = next(choice for choice, epoch in epochs.items() if epoch == epochs[run.choice])
    data: Any = hetcal.load_logits(path)
    arrays = data.val.logits, data.val.labels, data.test.logits, data.test.labels
    return evaluate_method(run, Result({}, *arrays), choice, method)


def main() -> None:
    """Rewrite the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("method", choices=METHODS)
    parser.add_argument("--runs", default="", metavar="TEXT", help="how the names of the runs start")
    parser.add_argument("--keep", action="store_true", help="keep lines that cannot be computed again")
    parser.add_argument("--add", action="append", default=[], metavar="NAME", help="a table or figure")
    arguments = parser.parse_args()
    method, added_runs = arguments.method, {run.name for item in arguments.add for run in runs_for(item)}
    old = {table: read(table) for table in ("metrics", "classes")}
    present = set(old["metrics"].query("method == @method")["run"])
    replaced = {name for name in present if name.startswith(arguments.runs)}
    new = {}
    for name in sorted(added_runs - present if added_runs else replaced):
        new[name] = evaluate(name, method)
        print(name, "evaluated" if new[name] else "has no committed logits")
    for table, lines in old.items():
        added = [frames[table] for frames in new.values() if frames]
        is_replaced = (lines["method"] == method) & lines["run"].isin(replaced)
        if arguments.keep:
            computed = {pair for frame in added for pair in zip(frame["run"], frame["choice"], strict=True)}
            pairs = zip(lines["run"], lines["choice"], strict=True)
            is_replaced &= np.array([pair in computed for pair in pairs])
        kept = lines if added_runs else lines[~is_replaced]
        result = pd.concat([kept, *added]).sort_values("run", kind="stable")
        (RESULTS / f"{table}.csv").write_text(result.to_csv(index=False, lineterminator="\n"), "utf-8")


if __name__ == "__main__":
    main()
