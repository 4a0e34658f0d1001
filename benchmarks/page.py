"""Write ``docs/performance.md`` and its figures from the stored ``results.json``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import figures
from timing import HERE, RESULTS, load_results

__all__ = ["write"]

DOCS = HERE.parent / "docs"
Rows = list[dict[str, Any]]
# Columns that contain text and are left-aligned
_TEXT_COLUMNS = {
    "route",
    "fit",
    "problem",
    "call",
    "rows",
    "library",
    "state",
    "method",
    "input",
    "note",
    "what it computes",
}

# Title of the section on each benchmark
_TITLES = {
    "fit": "Temperatures",
    "isotonic": "Isotonic regression within each predicted class",
    "first call": "First call in a process",
    "vector": "Vector scaling",
    "evaluation": "Evaluation",
    "serving": "Prediction",
    "growth": "Scaling with rows and classes",
    "memory": "Memory",
    "out of core": "Data on disk",
    "dask": "On a Dask cluster",
}

_HEAD = """# Performance

This page compares the speed and memory use of hetcal with other calibration libraries. `make bench`
([benchmarks/run.py](../benchmarks/run.py)) measures all libraries of a section in the same run
and writes [benchmarks/results.json](../benchmarks/results.json), from which `python benchmarks/page.py`
generates this page. The ratios are more reliable than the absolute times.
"""

_CONDITIONS = """
**How we measure.** A time is the median over calls in one process: up to seven calls in two rounds, or up to
28 calls in eight rounds if a call takes less than 0.2 s. Each round starts with an extra call that is not
counted. If that call takes more than 10 s, it is counted and is the only call of its round. If it takes more
than 30 s, there is only one round. Code is imported and compiled, and the rows are in memory, before the
measurement. Rounds in which other processes used a tenth of the machine or more are discarded if at least two
rounds remain. First calls, predictions, memory, data on disk, the Dask cluster, the GPU and the vector
scaling of netcal are measured differently, as their sections state.

**Methods.** *TS* fits one temperature, *CTS* fits one temperature per class, and *VS* is vector scaling.
*Γ* is the largest allowed difference between the inverse temperature of a class and a common value;
with "bayes" and "cv", the data determine the differences (see [how much temperatures may differ](gamma.md)).
NLL is the negative log-likelihood, and ECE is the expected calibration error.

**Data.** A problem of 5,000 × 100 has 5,000 rows and 100 classes. Logits are float32 and drawn from a normal
distribution with standard deviation 2.5. Labels are drawn so that half of the classes are over-confident and
half are under-confident.

**Other libraries** run with their default settings. Their input (a tensor or probabilities) is prepared
before the measurement. hetcal and torch (used by probmetrics, torch-uncertainty, netcal and torchmetrics)
use all cores. scikit-learn's temperature scaling and MAPIE's isotonic regression use one.

**Speed** is the time of the fastest other library divided by the time in the row. A value above 1 is faster
than every other library.
"""


def write(results: Path = RESULTS, docs: Path = DOCS) -> None:
    """Write the page and its figures."""
    stored = load_results(results)
    rows = stored["rows"]
    (docs / "images").mkdir(parents=True, exist_ok=True)
    figures.draw_speeds(rows, docs / "images" / "performance.png")
    figures.draw_growth(rows, docs / "images" / "performance-growth.png")
    parts = [_HEAD, _machine(stored["machines"].get("cpu", {})), _CONDITIONS, _runs(rows), _disturbance(rows)]
    parts += [section(selected) for name, section in _SECTIONS.items() if (selected := _select(rows, name))]
    if gpu := _select(rows, "gpu"):
        parts.append(_gpu(gpu, stored["machines"].get("gpu", {})))
    (docs / "performance.md").write_text(
        "\n".join(part.strip("\n") + "\n" for part in parts), encoding="utf-8"
    )


def _machine(machine: dict[str, Any]) -> str:
    if not machine:
        return ""
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return (
        f"**Machine.** {machine['processor']}, {machine['cores']} cores, {machine['memory_gb']:g} GB, "
        f"{machine['system']}; load {machine['load']:g} at the start; {machine['date']}. "
        f"Python {machine['python']}, {versions}."
    )


def _runs(rows: Rows) -> str:
    """Say which sections come from which run."""
    by_run: dict[str, list[str]] = {}
    for row in rows:
        if row["benchmark"] != "gpu":
            title = _TITLES.get(row["benchmark"], row["benchmark"])
            by_run.setdefault(row.get("begun", "an unknown date"), []).append(title)
    if len(by_run) <= 1:
        started = next(iter(by_run), "never")
        return f"All sections except the one on GPUs come from one run, which started at {started} (UTC)."
    listed = "\n".join(f"- {begun}: {'; '.join(dict.fromkeys(titles))}" for begun, titles in by_run.items())
    return (
        f"The sections except the one on GPUs come from {len(by_run)} runs, which started at these times "
        f"(UTC):\n\n{listed}"
    )


def _disturbance(rows: Rows) -> str:
    """Say how much of the machine other processes used."""
    share = max((row["more"].get("others", 0.0) for row in rows if row["benchmark"] != "gpu"), default=0.0)
    if share < 0.1:
        return "Where we recorded the load by other processes, it was below a tenth of the machine."
    return f"Other processes used up to {share:.0%} of the machine during some measurements; repeat these."


def _fits(rows: Rows) -> str:
    problems = list(dict.fromkeys(row["problem"] for row in rows))
    names = list(dict.fromkeys(row["library"] for row in rows))
    by_key = {(row["problem"], row["library"]): row for row in rows}
    peers = [
        name for name in names if "nll_above" in by_key[problems[0], name]["more"] and "hetcal" not in name
    ]
    fits = _table(
        ["fit", *(f"{problem}: time | speed" for problem in problems)],
        (
            [name, *(cell for problem in problems for cell in _time_and_speed(by_key.get((problem, name))))]
            for name in [n for n in names if n not in peers] + peers
        ),
    )
    reads = "; ".join(
        f"{problem}: {by_key[problem, 'hetcal CTS, Γ = ∞']['more']['reads']:.1f}" for problem in problems
    )
    solutions = _table(
        ["library", *(f"{problem}: α | NLL − NLL of hetcal TS" for problem in problems)],
        (
            [name, *(cell for problem in problems for cell in _alpha_and_loss(by_key.get((problem, name))))]
            for name in ["hetcal TS", *peers]
        ),
    )
    notes = "\n".join(f"- {name}: {by_key[problems[0], name]['note']}." for name in peers)
    return f"""
## Temperatures

![Speed of fits relative to the fastest other library, by problem](images/performance.png)

*Speed of fits of temperatures and of vector scaling, relative to the fastest other library. The figure
leaves out CTS with Γ = cv, because cross-validation fits many times.*

hetcal fits one temperature (TS) or one per class (CTS). The other libraries fit one temperature.

{fits}
Time of CTS with Γ = ∞, as a multiple of the time of one read of the logits (`z.sum()`): {reads}.

The following table shows the inverse temperature α that each library fits to all rows, and the NLL of this
fit minus that of hetcal TS. Differences of about 1e-15 are rounding errors.

{solutions}
Notes on the other libraries:

{notes}
"""


def _isotonic(rows: Rows) -> str:
    table = _table(
        ["fit", f"{rows[0]['problem']}: time", "speed", "input"],
        ([row["library"], *_time_and_speed(row), row["note"]] for row in rows),
    )
    return f"""
## Isotonic regression within each predicted class

{table}"""


def _first_calls(rows: Rows) -> str:
    table = _table(
        ["problem", "state", "imports, compilation and fit"],
        ([row["problem"], row["note"], _time(row["seconds"])] for row in rows),
    )
    return f"""
## First call in a process

This table shows the time from the first line of a new process to the fitted calibrator (CTS with Γ = ∞),
without the time to load the rows. Each time is the median over three processes. hetcal does not load numba
for small arrays.

{table}"""


def _vectors(rows: Rows) -> str:
    table = _table(
        ["problem", "fit", "time", "speed", "training NLL", "method"],
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
The vector scaling of torch-uncertainty has no bias, so more steps do not reduce its loss to that of
the others.
netcal scales log-probabilities, which is a different family of maps. Its numerical gradients need one pass
per parameter, so we measure it only on the smaller problem, with a single call in a new process.
"""


def _evaluation(rows: Rows) -> str:
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


def _serving(rows: Rows) -> str:
    problems = list(dict.fromkeys(row["problem"] for row in rows))
    by_key = {(row["problem"], row["library"]): row for row in rows}
    names = list(dict.fromkeys(row["library"] for row in rows))
    table = _table(
        ["route", *(f"{problem}: time | relative to softmax" for problem in problems)],
        (
            [
                name,
                *(
                    cell
                    for problem in problems
                    for cell in (
                        _time(by_key[problem, name]["seconds"]),
                        _number(by_key[problem, name]["more"]["softmaxes"], ".2f"),
                    )
                ),
            ]
            for name in names
        ),
    )
    return f"""
## Prediction

This table shows the time of one call that turns logits into probabilities, on one thread
(`benchmarks/serve.py`). It is the median over 30 rounds of the mean time of a call. A round has as many calls
as fit into 0.02 s, but at least three. *Relative to softmax* is the time divided by that of the softmax alone
in ONNX Runtime.

{table}
With one row, the time of CTS in ONNX Runtime is mostly the overhead per operator. CTS has four operators
(argmax, gather, multiply, softmax). With many rows, the ArgMax of ONNX Runtime takes longer than the softmax.
With `hetcal.onnx.export(..., many_rows=True)`, the graph first computes the maximum of blocks of columns, for
which ONNX Runtime has fast code. The remaining cost is one read of the logits for the maximum, one read and
write for the scaling, and a few small operators.
"""


def _growth(rows: Rows) -> str:
    lines = list(dict.fromkeys(row["note"] for row in rows))
    tables = []
    for line in lines:
        selected = [row for row in rows if row["note"] == line]
        body = ([row["problem"], _time(row["seconds"]), _per_element(row)] for row in selected)
        overall, compiled = (_power(selected, key) for key in ("slope", "slope_compiled"))
        title = line[0].upper() + line[1:]
        exponents = (
            f"{title}: exponent **{overall}** for all problems, and **{compiled}** for those with four "
            "million logits or more."
        )
        tables.append(exponents + "\n\n" + _table(["problem", "time", "ns per logit"], body))
    return """
## Scaling with rows and classes

These tables show the time of fitting CTS with Γ = ∞. Below about four million logits, hetcal uses NumPy
(hollow marks in the figure); above, it uses compiled code, so the lines have a kink there. An exponent e
means that the time is proportional to the number of rows, or classes, to the power e. The exponents are
least-squares fits on a log-log scale (dashed lines).

![Time of a fit against the number of rows and of classes](images/performance-growth.png)

""" + "\n".join(tables)


def _memory(rows: Rows) -> str:
    problems = list(dict.fromkeys(row["problem"] for row in rows))
    names = list(dict.fromkeys(row["library"] for row in rows))
    by_key = {(row["problem"], row["library"]): row["more"] for row in rows}
    table = _table(
        ["fit", *(f"{problem}: {by_key[problem, names[0]]['input'] / 1e6:,.0f} MB" for problem in problems)],
        ([name, *(_share(by_key.get((problem, name))) for problem in problems)] for name in names),
    )
    return f"""
## Memory

This table shows the peak memory of a fit, not counting its input (float32 logits and int64 labels). The
header of each column gives the size of the input. The percentages in parentheses are relative to that size.
Each fit runs in a new process that has already imported and compiled all code.

{table}"""


def _out_of_core(rows: Rows) -> str:
    row = rows[0]
    if row["seconds"] is None:
        return f"## Data on disk\n\n{row['problem']}: {row['note']}\n"
    more = row["more"]
    size, peak = f"{more['bytes'] / 1e9:.1f} GB", f"{more['peak'] / 2**20:,.0f} MiB"
    return f"""
## Data on disk

CTS with Γ = ∞ on {row["problem"]} float32 logits and uint8 labels in memory-mapped `.npy` files ({size}),
read with `hetcal.Batches`, took {_time(row["seconds"])}. This is the time of a single call in a new process,
which can load compiled code from the cache. The peak memory of the whole process was {peak}. The files had
just been written, so they may have been in the file system cache. The rows repeat a pattern; the temperatures
differ by at most {more["apart"]:.1e} from those fitted to the pattern in memory.
"""


def _dask(rows: Rows) -> str:
    if rows[0]["seconds"] is None:
        return f"## On a Dask cluster\n\n{rows[0]['problem']}: {rows[0]['note']}\n"
    body = ([row["note"], _time(row["seconds"]), _number(row["more"].get("apart"), ".1e")] for row in rows)
    size = f"{rows[0]['more']['bytes'] / 1e9:.1f} GB"
    same = any(row["more"].get("same") for row in rows)
    return f"""
## On a Dask cluster

We fit CTS with Γ = ∞ to {rows[0]["problem"]} float32 logits ({size} of Parquet files) on a local cluster of
two worker processes with one thread each, on the machine above. Each time is that of a single call. A worker
that replaces a killed one has to import all code again.

{_table(["rows", "time", "largest difference of α from the fit in memory"], body)}
{"The loss of a worker did not change a single bit of the fitted α." if same else ""}
"""


def _gpu(rows: Rows, machine: dict[str, Any]) -> str:
    table = _table(
        ["fit", f"{rows[0]['problem']}: time", "speed", "relative to one read", "note"],
        (
            [row["library"], *_time_and_speed(row), _number(row["more"].get("reads"), ".1f"), row["note"]]
            for row in rows
        ),
    )
    calls = " or ".join(str(n) for n in sorted({row["more"]["repeats"] for row in rows if row["more"]}))
    name = machine.get("gpu", machine.get("processor", "another machine"))
    torch = machine.get("versions", {}).get("torch", "")
    return f"""
## On a GPU

Measured with `python benchmarks/gpu.py` on {name}, torch {torch}, {machine.get("date", "")}. The rows are on
the device before the measurement. Each time is the median over {calls} calls.

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


def _select(rows: Rows, benchmark: str) -> Rows:
    return [row for row in rows if row["benchmark"] == benchmark]


def _table(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    columns = [cell.strip() for title in head for cell in title.split("|")]
    lines = [columns, ["---" if title in _TEXT_COLUMNS else "---:" for title in columns], *body]
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
    return f"{row['more']['alpha']:.5f}", f"{row['more']['nll_above']:.1e}"


def _number(value: float | None, spec: str) -> str:
    return "–" if value is None else format(value, spec)


def _power(rows: Rows, key: str) -> str:
    return _number(rows[0]["more"][key], ".2f").replace("-", "\N{MINUS SIGN}")


def _per_element(row: dict[str, Any]) -> str:
    return f"{1e9 * row['seconds'] / (row['more']['n'] * row['more']['k']):.1f}"


def _share(more: dict[str, Any] | None) -> str:
    return "–" if more is None else f"{more['bytes'] / 1e6:,.0f} MB ({more['share']:.0%})"


if __name__ == "__main__":
    write()
