"""Draw ``docs/performance.md`` and its figures from ``results.json``, without measuring anything."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import figures
from timing import HERE, RESULTS, load_results

__all__ = ["write"]

DOCS = HERE.parent / "docs"
Found = list[dict[str, Any]]
# Columns of words; others hold numbers
_WORDS = {
    "route",
    "fit",
    "problem",
    "call",
    "rows",
    "one temperature",
    "state",
    "how",
    "input",
    "note",
    "what it computes",
}

_HEAD = """# Performance

Written by `make bench` ([benchmarks/run.py](../benchmarks/run.py)), which measures hetcal and its peers in
the same run; `python benchmarks/page.py` draws the page again from
[benchmarks/results.json](../benchmarks/results.json). Trust the ratios more than the seconds.
"""

_CONDITIONS = """
Unless said otherwise, a time is the median of up to seven calls in one process, of up to 28 in eight rounds
where one takes less than 0.2 s, warm: code imported and compiled, rows in memory, one call before each
round does not count, nor does a round in which other work took a tenth of the machine, if two are left.
What takes more than 10 s is called twice, what takes more than 30 s once. Logits are float32, 2.5 times
standard normal; labels are drawn so that half of the classes are over-confident and half under-confident.
Peers run with the settings that they come with, and what a peer wants its input to be (a tensor,
probabilities) is made before the clock starts.
**Speed** is the time of the fastest peer divided by the time of the row.

Threads: hetcal and torch (behind probmetrics, torch-uncertainty, netcal and torchmetrics) use all cores;
scikit-learn's temperature and MAPIE's isotonic regression use one.
"""


def write(results: Path = RESULTS, docs: Path = DOCS) -> None:
    """Page and figures."""
    found = load_results(results)
    rows = found["rows"]
    (docs / "images").mkdir(parents=True, exist_ok=True)
    figures.draw_speeds(rows, docs / "images" / "performance.png")
    figures.draw_growth(rows, docs / "images" / "performance-growth.png")
    parts = [_HEAD, _machine(found["machines"].get("cpu", {})), _CONDITIONS, _runs(rows), _disturbance(rows)]
    parts += [section(of) for name, section in _SECTIONS.items() if (of := _only(rows, name))]
    if gpu := _only(rows, "gpu"):
        parts.append(_gpu(gpu, found["machines"].get("gpu", {})))
    (docs / "performance.md").write_text(
        "\n".join(part.strip("\n") + "\n" for part in parts), encoding="utf-8"
    )


def _machine(machine: dict[str, Any]) -> str:
    if not machine:
        return ""
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return (
        f"Machine: {machine['processor']}, {machine['cores']} cores, {machine['memory_gb']:g} GB, "
        f"{machine['system']}; load {machine['load']:g} at the start; {machine['date']}. "
        f"Python {machine['python']}, {versions}."
    )


def _runs(rows: Found) -> str:
    """Whether all rows are of one run, and if not, which are of which."""
    by_run: dict[str, list[str]] = {}
    for row in rows:
        if row["benchmark"] != "gpu":
            by_run.setdefault(row.get("begun", "an earlier day"), []).append(row["benchmark"])
    if len(by_run) <= 1:
        return f"All rows but the GPU's are of one run, begun {next(iter(by_run), 'never')} (UTC)."
    listed = "; ".join(f"{begun}: {', '.join(dict.fromkeys(names))}" for begun, names in by_run.items())
    return f"The rows are of {len(by_run)} runs (UTC): {listed}."


def _disturbance(rows: Found) -> str:
    """A word on how quiet the machine was."""
    share = max((row["more"].get("others", 0.0) for row in rows if row["benchmark"] != "gpu"), default=0.0)
    if share < 0.1:
        return "No other work took more than a tenth of the machine while a row was measured."
    return f"Other work took up to {share:.0%} of the machine while some rows were measured: measure again."


def _fits(rows: Found) -> str:
    problems = list(dict.fromkeys(row["problem"] for row in rows))
    names = list(dict.fromkeys(row["library"] for row in rows))
    at = {(row["problem"], row["library"]): row for row in rows}
    peers = [name for name in names if "nll_above" in at[problems[0], name]["more"] and "hetcal" not in name]
    fits = _table(
        ["fit", *(f"{problem}: time | speed" for problem in problems)],
        (
            [name, *(cell for problem in problems for cell in _time_and_speed(at.get((problem, name))))]
            for name in [n for n in names if n not in peers] + peers
        ),
    )
    reads = "; ".join(
        f"{problem}: {_found(at, problem, 'hetcal CTS, Γ = ∞', 'reads'):.1f}" for problem in problems
    )
    ends = _table(
        ["one temperature", *(f"{problem}: α | NLL above the least" for problem in problems)],
        (
            [name, *(cell for problem in problems for cell in _alpha_and_loss(at.get((problem, name))))]
            for name in ["hetcal TS", *peers]
        ),
    )
    notes = "\n".join(f"- {name}: {at[problems[0], name]['note']}." for name in peers)
    return f"""
## Temperatures

![Speed of fits beside the fastest peer, by problem](images/performance.png)

hetcal fits one temperature (TS) or one for each class (CTS); the peers fit one.

{fits}
CTS with Γ = ∞ takes as long as so many plain reads of the logits (`z.sum()`): {reads}.

Where each one ends:

{ends}
{notes}
"""


def _isotonic(rows: Found) -> str:
    table = _table(
        ["fit", f"{rows[0]['problem']}: time", "speed", "input"],
        ([row["library"], *_time_and_speed(row), row["note"]] for row in rows),
    )
    return f"""
## Isotonic regression within each predicted class

{table}"""


def _first_calls(rows: Found) -> str:
    table = _table(
        ["problem", "state", "imports, compilation and fit"],
        ([row["problem"], row["note"], _time(row["seconds"])] for row in rows),
    )
    return f"""
## First call of a process

CTS with Γ = ∞, from a bare interpreter to the fitted calibrator, less the time that loading the rows took.
Small arrays are done by numpy before numba would be loaded.

{table}"""


def _vectors(rows: Found) -> str:
    table = _table(
        ["problem", "fit", "time", "speed", "NLL on these rows", "how"],
        (
            [
                row["problem"],
                row["library"],
                *_time_and_speed(row),
                _number(row["more"].get("nll"), ".7f"),
                row["note"],
            ]
            for row in rows
        ),
    )
    return f"""
## Vector scaling

{table}
torch-uncertainty's vector scaling has no bias, so that more steps do not bring its loss down to that of the
others. netcal scales log-probabilities, which is another family, and its numerical slopes cost a pass for
each of the 2K parameters, so that it is measured on fewer rows.
"""


def _evaluation(rows: Found) -> str:
    table = _table(
        ["call", f"{rows[0]['problem']}: time", "speed", "ECE", "what it computes"],
        (
            [row["library"], *_time_and_speed(row), _number(row["more"]["ece"], ".6f"), row["note"]]
            for row in rows
        ),
    )
    return f"""
## Evaluation

{table}"""


def _serving(rows: Found) -> str:
    problems = list(dict.fromkeys(row["problem"] for row in rows))
    at = {(row["problem"], row["library"]): row for row in rows}
    names = list(dict.fromkeys(row["library"] for row in rows))
    table = _table(
        ["route", *(f"{problem}: time | in bare softmaxes" for problem in problems)],
        (
            [
                name,
                *(
                    cell
                    for problem in problems
                    for cell in (
                        _time(at[problem, name]["seconds"]),
                        _number(at[problem, name]["more"]["softmaxes"], ".2f"),
                    )
                ),
            ]
            for name in names
        ),
    )
    return f"""
## In production

From `benchmarks/serve.py`: one call with so many rows, one thread, probabilities asked for.

{table}
At one row a call costs what the runtime needs to start an operator, and CTS has four (argmax, gather,
multiply, softmax). At many rows ONNX Runtime's ArgMax takes longer than the softmax; `many_rows=True` takes
the largest entry of blocks of columns first, for which it has fast code. What remains is one read of the
logits for the largest entry, one read and write for the scaling, and half a dozen small operators.
"""


def _growth(rows: Found) -> str:
    lines = list(dict.fromkeys(row["note"] for row in rows))
    tables = []
    for line in lines:
        some = [row for row in rows if row["note"] == line]
        body = ([row["problem"], _time(row["seconds"]), _per_element(row)] for row in some)
        both, later = (_power(some, which) for which in ("slope", "slope_compiled"))
        power = f"{line}: power **{both}**, from four million logits on **{later}**."
        tables.append(power + "\n\n" + _table(["problem", "time", "ns per logit"], body))
    return """
## Cost against rows and classes

CTS with Γ = ∞. Below about four million logits numpy does the passes, above them compiled code, so that lines
have a bend there (hollow marks are numpy's). Powers are least squares on logarithms: time grows as
rows, or classes, to that power.

![Time of a fit against the number of rows and of classes](images/performance-growth.png)

""" + "\n".join(tables)


def _memory(rows: Found) -> str:
    problems = list(dict.fromkeys(row["problem"] for row in rows))
    names = list(dict.fromkeys(row["library"] for row in rows))
    at = {(row["problem"], row["library"]): row["more"] for row in rows}
    table = _table(
        ["fit", *(f"{problem}: {at[problem, names[0]]['input'] / 1e6:,.0f} MB" for problem in problems)],
        ([name, *(_share(at.get((problem, name))) for problem in problems)] for name in names),
    )
    return f"""
## Memory

Peak of a fit above its input (float32 logits and int64 labels), each in a fresh process that has imported
and compiled everything before.

{table}"""


def _out_of_core(rows: Found) -> str:
    row = rows[0]
    if row["seconds"] is None:
        return f"## Rows on disk\n\n{row['problem']}: {row['note']}\n"
    more = row["more"]
    size, peak = f"{more['bytes'] / 1e9:.1f} GB", f"{more['peak'] / 2**20:,.0f} MiB"
    return f"""
## Rows on disk

CTS with Γ = ∞ on {row["problem"]} float32 logits and uint8 labels in mapped `.npy` files, {size} together,
with `hetcal.Batches`, in a fresh process that finds compiled code in the cache: {_time(row["seconds"])}; the
whole process held {peak} at its peak. The files had just been written and may have been in the system's
cache. The rows repeat a pattern; its temperatures, fitted in memory, differ by {more["apart"]:.1e} at most.
"""


def _dask(rows: Found) -> str:
    if rows[0]["seconds"] is None:
        return f"## On a Dask cluster\n\n{rows[0]['problem']}: {rows[0]['note']}\n"
    body = ([row["note"], _time(row["seconds"]), _number(row["more"].get("apart"), ".1e")] for row in rows)
    size = f"{rows[0]['more']['bytes'] / 1e9:.1f} GB"
    same = any(row["more"].get("same") for row in rows)
    return f"""
## On a Dask cluster

CTS with Γ = ∞ on {rows[0]["problem"]} float32 logits, {size} of Parquet, on a local cluster of two worker
processes with a thread each, on the machine above. The worker that takes the place of a killed one starts
cold.

{_table(["rows", "time", "largest difference of α to memory"], body)}
{"The loss of a worker did not change a bit of the result." if same else ""}
"""


def _gpu(rows: Found, machine: dict[str, Any]) -> str:
    table = _table(
        ["fit", f"{rows[0]['problem']}: time", "speed", "reads of the logits", "note"],
        (
            [row["library"], *_time_and_speed(row), _number(row["more"].get("reads"), ".1f"), row["note"]]
            for row in rows
        ),
    )
    name = machine.get("gpu", machine.get("processor", "another machine"))
    torch = machine.get("versions", {}).get("torch", "")
    return f"""
## On a GPU

From `python benchmarks/gpu.py` on {name}, torch {torch}, {machine.get("date", "")}. Rows lie on the device
before the clock starts.

{table}"""


_SECTIONS = {
    "fit": _fits,
    "isotonic": _isotonic,
    "first call": _first_calls,
    "vector": _vectors,
    "evaluation": _evaluation,
    "serving": _serving,
    "growth": _growth,
    "memory": _memory,
    "out of core": _out_of_core,
    "dask": _dask,
}


def _only(rows: Found, benchmark: str) -> Found:
    return [row for row in rows if row["benchmark"] == benchmark]


def _table(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    columns = [cell.strip() for title in head for cell in title.split("|")]
    lines = [columns, ["---" if title in _WORDS else "---:" for title in columns], *body]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    if seconds >= 100:
        return f"{seconds:,.0f} s"
    if seconds < 1e-3:
        return f"{1e6 * seconds:.3g} µs"
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def _time_and_speed(row: dict[str, Any] | None) -> tuple[str, str]:
    if row is None:
        return "–", "–"
    ratio = row["ratio"]
    return _time(row["seconds"]), "–" if ratio is None else figures.times(ratio)


def _alpha_and_loss(row: dict[str, Any] | None) -> tuple[str, str]:
    if row is None or "alpha" not in row["more"]:
        return "–", "–"
    return f"{row['more']['alpha']:.5f}", f"{max(row['more']['nll_above'], 0):.1e}"


def _found(at: dict[tuple[str, str], dict[str, Any]], problem: str, name: str, what: str) -> float:
    return float(at[problem, name]["more"][what])


def _number(value: float | None, shape: str) -> str:
    return "–" if value is None else format(value, shape)


def _power(some: Found, which: str) -> str:
    return _number(some[0]["more"][which], ".2f").replace("-", "\N{MINUS SIGN}")


def _per_element(row: dict[str, Any]) -> str:
    return f"{1e9 * row['seconds'] / (row['more']['n'] * row['more']['k']):.1f}"


def _share(more: dict[str, Any] | None) -> str:
    return "–" if more is None else f"{more['bytes'] / 1e6:,.0f} MB ({more['share']:.0%})"


if __name__ == "__main__":
    write()
