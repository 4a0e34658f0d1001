"""Count how often a measurement lies in the interval that `hetcal plan` predicts from a quarter of the rows.

    python benchmarks/quarters.py
    python benchmarks/quarters.py --slowest 0.5 --longest 0.3333      (narrower ranges of m₀ and τ)

docs/planning.md contains the results.
"""

from __future__ import annotations

import argparse

from hetcal import examples
from hetcal.planning import check_quarter, learning_curve

QUARTERS = 24


def main() -> None:
    """Print one line per embedded example."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--slowest",
        type=float,
        default=learning_curve._MAX_M0,
        help="largest m₀, relative to the largest size",
    )
    parser.add_argument(
        "--longest",
        type=float,
        default=learning_curve._MAX_TAU,
        help="largest τ, relative to the largest size",
    )
    options = parser.parse_args()
    learning_curve._MAX_M0, learning_curve._MAX_TAU = options.slowest, options.longest
    print("| example | NLLs | quarters with all four NLLs | gains |\n| --- | --- | --- | --- |")
    for name in examples.names():
        data = examples.load_example(name)
        rows = (data.val.logits, data.val.labels, data.test.logits, data.test.labels)
        checks = [check_quarter(*rows, rng=seed) for seed in range(QUARTERS)]
        lines = [line for quarter in checks for line in quarter.lines]
        gains = [line for line in lines if line.gain is not None]
        cells = (
            name,
            f"{sum(line.inside for line in lines)} of {len(lines)}",
            f"{sum(quarter.holds for quarter in checks)} of {len(checks)}",
            f"{sum(line.gain_inside for line in gains)} of {len(gains)}",
        )
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
