"""Format a plan as tables, as text and as JSON."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from hetcal._display import display_name
from hetcal._tables import Note, Table
from hetcal.metrics.evaluation import as_plain
from hetcal.planning.class_advice import Advice, ClassAdvice
from hetcal.planning.learning_curve import Interval

if TYPE_CHECKING:
    from hetcal.planning.plan import MethodPlan, ValidationPlan

__all__ = [
    "aligned",
    "count_text",
    "interval_dict",
    "plan_dict",
    "plan_tables",
    "plan_text",
    "rows_text",
    "summary_text",
]

_MAX_CLASSES = 20  # maximum number of classes in the table
_MAX_NAMES = 3  # number of classes that the summary names if it leaves some out


def summary_text(plan: ValidationPlan) -> str:
    """Say in one sentence whether the rows are enough, and for which classes more are needed."""
    text = "; ".join([*_pooled_clause(plan), *_class_clauses(plan)])
    return f"{text[0].upper()}{text[1:]}."


def plan_text(plan: ValidationPlan, *, theory: bool) -> str:
    """Format the summary and the tables of methods, classes and, with `theory`, the bound of Theorem 4.1."""
    head, *others = plan_tables(plan, theory=theory)
    return "\n".join(
        [
            *(head.lead, "", head.title, "", *_lines(head)),
            *(f"\n{t.title}\n" + "\n".join(_lines(t)) for t in others),
        ]
    )


def plan_tables(plan: ValidationPlan, *, theory: bool = False) -> tuple[Table, ...]:
    """Return the tables of methods and of classes.

    If `theory` is true and any method has a bound by Theorem 4.1, a table between them contains the bounds.
    The first table also contains the summary.
    """
    return _method_table(plan), *(_bound_tables(plan) if theory else ()), _class_table(plan)


def plan_dict(plan: ValidationPlan) -> dict[str, Any]:
    """Return the plan as JSON-compatible values; None replaces infinite and undefined numbers."""
    values = {
        "summary": plan.summary,
        "n": plan.n,
        "n_classes": plan.n_classes,
        "n_repeats": plan.n_repeats,
        "target": plan.target,
        "tolerance": plan.tolerance,
        "level": plan.level,
        "pooled": plan.pooled,
        "best": plan.best.name,
        "methods": [_method_dict(plan, m) for m in plan.methods],
        "classes": [asdict(c) for c in plan.classes],
    }
    return {key: as_plain(value) for key, value in values.items()}


def interval_dict(interval: Interval | None) -> dict[str, float | None] | None:
    """Return ``value``, ``low`` and ``high``, with None in place of inf; None stays None."""
    if interval is None:
        return None
    return {key: _finite(value) for key, value in interval._asdict().items()}


def count_text(rows: float) -> str:
    """Format a number of rows; "never" for inf.

    Numbers below 1,000 are rounded up to whole numbers. Larger numbers are rounded to three significant
    digits. Only one digit is kept if the number is ten million or more, as in "3e7".
    """
    if math.isinf(rows):
        return "never"
    step = 10 ** max(0, math.floor(math.log10(max(rows, 1))) - 2)
    rounded = math.ceil(rows) if rows < 1000 else round(rows / step) * step
    return f"{rounded:,}" if rounded < 10**7 else f"{rows:.0e}".replace("e+0", "e").replace("e+", "e")


def rows_text(rows: Interval, smallest: float) -> str:
    """Format a number of rows with its interval, such as "80 (60 to 120)".

    The plan has no measurements for fewer than `smallest` rows. If `smallest` is 20, an estimate of at most
    20 rows is therefore shown as "≤ 20". The interval is left out if its upper end is at most `smallest`, or
    if its lower end is inf.
    """
    if rows.value <= smallest and rows.high <= smallest:
        return f"≤ {count_text(smallest)}"
    value = f"≤ {count_text(smallest)}" if rows.value <= smallest else count_text(rows.value)
    return value if math.isinf(rows.low) else f"{value} ({count_text(rows.low)} to {count_text(rows.high)})"


def _pooled_clause(plan: ValidationPlan) -> list[str]:
    """Say whether the rows are enough for one temperature; empty if no method fits one temperature."""
    if plan.pooled is None:
        return []
    needed = plan[plan.pooled].rows_to_limit.value
    if needed <= plan.n:
        return ["enough rows for one temperature"]
    if math.isinf(needed):
        return ["too few rows even for one temperature"]
    return [f"one temperature needs about {count_text(needed - plan.n)} more rows"]


def _class_clauses(plan: ValidationPlan) -> list[str]:
    """Say which classes need more rows or, if none does, how many should have their own temperature.

    If there are classes that are never predicted, a second clause names them.
    """
    undecided = [c for c in plan.classes if c.kind is Advice.MORE_ROWS]
    unseen = [c for c in plan.classes if c.n == 0]
    n_own = sum(c.kind is Advice.OWN for c in plan.classes)
    clauses = ["no class needs its own temperature"]
    if undecided:
        fewest, most = (f(c.more_rows for c in undecided) for f in (min, max))
        more_rows = f"{most:,}" if fewest == most else f"{fewest:,} to {most:,}"
        which = f"{_share(len(undecided), plan)} ({_names(undecided)})"
        clauses = [f"class-wise temperatures need about {more_rows} more rows per class for {which}"]
    elif n_own:
        own = f"{_share(n_own, plan)} should have {'its' if n_own == 1 else 'their'} own"
        clauses = [f"class-wise temperatures need no more rows, and {own}"]
    if unseen:
        clauses.append(f"no row is predicted as {_share(len(unseen), plan)} ({_names(unseen)})")
    return clauses


def _share(n: int, plan: ValidationPlan) -> str:
    """Format a number of classes: ``3 of 10 classes``, or ``all 10 classes`` if `n` is their number."""
    n_classes = len(plan.classes)
    return f"all {n_classes:,} classes" if n == n_classes else f"{n:,} of {n_classes:,} classes"


def _names(classes: list[ClassAdvice]) -> str:
    names = [display_name(c.name) for c in classes]
    if len(names) <= _MAX_NAMES + 1:
        return ", ".join(names)
    return f"{', '.join(names[:_MAX_NAMES])} and {len(names) - _MAX_NAMES:,} more"


def _method_dict(plan: ValidationPlan, method: MethodPlan) -> dict[str, Any]:
    now = plan.predict(method.name, plan.n)
    bound = method.bound
    c, a, m0, d, tau = method.curve.fit.tolist()
    return {
        "method": method.name,
        "sizes": method.sizes,
        "nll": method.nll,
        "nll_error": method.nll_error,
        "max_ece_excess": method.max_ece_excess,
        "max_ece_error": method.max_ece_error,
        "curve": {"c": plan.reference + c, "a": a, "m0": m0, "d": d, "tau": tau},
        "now": {
            "nll": interval_dict(now.nll),
            "gain": interval_dict(now.gain),
            "max_ece_excess": interval_dict(now.max_ece_excess),
        },
        "limit": interval_dict(method.limit),
        "rows_to_target": interval_dict(method.rows_to_target),
        "rows_to_limit": interval_dict(method.rows_to_limit),
        "beats_pooled_from": interval_dict(method.beats_pooled_from),
        "excess_now": _excess(method, plan.n),
        "bound": None
        if bound is None
        else {
            "excess": bound.excess(plan.n),
            "rows": _finite(bound.rows(plan.tolerance)),
            "gamma": _finite(bound.gamma),
            "l_f": bound.l_f,
            "alpha_range": bound.alpha_range,
            "delta": bound.delta,
            "regime": bound.regime(plan.n),
        },
    }


def _method_table(plan: ValidationPlan) -> Table:
    columns, rows = _method_titles(plan), []
    for m in plan.methods:
        now, smallest = plan.predict(m.name, plan.n), m.sizes[0]
        versus_pooled: tuple[str, ...] = ("", "")
        if m.beats_pooled_from is not None and now.gain is not None:
            gain = f"{now.gain.value:.4f} ({now.gain.low:.4f} to {now.gain.high:.4f})"
            versus_pooled = (gain, rows_text(m.beats_pooled_from, smallest))
        numbers = (f"{now.nll.value:.4f}", f"{m.limit.value:.4f}", rows_text(m.rows_to_target, smallest))
        row = (m.name, *numbers, f"{now.max_ece_excess.value:+.3f}", *versus_pooled)
        rows.append(row[: len(columns)])
    half_width = max((m.limit.high - m.limit.low) / 2 for m in plan.methods)
    is_default = abs(plan.target - plan.best.limit.value - plan.tolerance) < 1e-9
    target = f"The target {plan.target:.4f} is the limit of {plan.best.name} plus {plan.tolerance:g}. "
    note = f"{target if is_default else ''}All NLLs share a sampling error of ±{half_width:.3f}."
    sizes = plan.methods[0].sizes
    title = (
        f"{plan.n:,} rows, {plan.n_classes} classes; fitted on {sizes[0]:,.0f} to {sizes[-1]:,.0f} of them "
        f"in {plan.n_repeats} splits and evaluated on the rest; {100 * plan.level:g}% intervals"
    )
    return Table(title, columns, rows, (Note(text=note),), lead=plan.summary)


def _method_titles(plan: ValidationPlan) -> tuple[str, ...]:
    titles = (
        "method",
        f"NLL at {plan.n:,}",
        "NLL limit",
        f"rows to reach {plan.target:.4f}",
        "max-ECE − floor",
    )
    if plan.pooled is None:
        return titles
    return (*titles, f"gain over {plan.pooled}", f"beats {plan.pooled} from")


def _bound_tables(plan: ValidationPlan) -> tuple[Table, ...]:
    bounded = [(m, m.bound) for m in plan.methods if m.bound is not None]
    if not bounded:
        return ()
    first = bounded[0][1]
    low, high = first.alpha_range
    title = (
        "Excess NLL over each method's own limit, in nats, and the bound of Theorem 4.1 "
        f"(largest logit norm {first.l_f:.1f}, α in {low:g}..{high:g}, δ = {first.delta:g}):"
    )
    rows = f"rows to reach {plan.tolerance:g}"
    columns = ("method", f"excess at {plan.n:,}", "bound", rows, "rows by the bound")
    table = []
    for method, bound in bounded:
        excess = (f"{_excess(method, plan.n):.1e}", f"{bound.excess(plan.n):.0f}")
        needed = (rows_text(method.rows_to_limit, method.sizes[0]), count_text(bound.rows(plan.tolerance)))
        table.append((method.name, *excess, *needed))
    return (Table(title, columns, table),)


def _class_table(plan: ValidationPlan) -> Table:
    kinds = [c.kind for c in plan.classes]
    counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in Advice if kind in kinds)
    order = sorted(plan.classes, key=lambda c: -c.gain if c.n else math.inf)
    rows = []
    for c in order[:_MAX_CLASSES]:
        if c.n:
            interval = f"{c.gain_low:.3f} to {c.gain_high:.3f}"
            numbers = (f"{c.alpha:.3f}", f"{c.gain:.4f}", interval, f"{c.cost:.4f}")
        else:
            numbers = ("", "", "", "")
        rows.append((display_name(c.name), f"{c.n:,}", *numbers, c.advice))
    title = f"Classes (shared α {plan.classes[0].alpha_pooled:.3f}): {counts}"
    n_hidden = len(order) - _MAX_CLASSES
    notes = (Note(text=f"and {n_hidden} more"),) if n_hidden > 0 else ()
    columns = ("class", "rows", "own α", "gain per row", "interval", "cost", "advice")
    return Table(title, columns, rows, notes, left=("advice",))


def _lines(table: Table) -> list[str]:
    """Format the columns and rows of a table as aligned lines, followed by its notes."""
    rows = [tuple(map(str, row)) for row in (table.columns, *table.rows)]
    is_last_left = table.is_left(len(table.columns) - 1)
    return [*aligned(rows, last_left=is_last_left), *(note.text for note in table.notes)]


def _excess(method: MethodPlan, rows: int) -> float:
    """Height of the fitted curve above its limit, for a number of rows."""
    return float(method.curve.at(np.array([float(rows)]))[0]) - method.curve.limit


def aligned(table: list[tuple[str, ...]], *, last_left: bool = False) -> list[str]:
    """Format a table as lines.

    The first column is left-aligned, and so is the last one if `last_left` is true.
    """
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    lines = []
    for row in table:
        cells = [row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]
        if last_left:
            cells[-1] = row[-1]
        lines.append("  ".join(cells).rstrip())
    return lines


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
