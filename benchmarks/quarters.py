"""Coverage of the intervals that `hetcal plan` predicts from a quarter of the rows, for docs/planning.md.

python benchmarks/quarters.py
python benchmarks/quarters.py --slowest 0.5 --longest 0.3333      (with narrower ranges of m₀ and τ)
"""

from __future__ import annotations

import argparse

from hetcal import examples
from hetcal.planning import check_quarter, learning_curve

QUARTERS = 24


def main() -> None:
    """Print a line per embedded example."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--slowest", type=float, default=learning_curve._MAX_M0, help="largest m₀, in largest sizes"
    )
    parser.add_argument("--longest", type=float, default=learning_curve._MAX_TAU, help="largest τ, likewise")
    options = parser.parse_args()
    learning_curve._MAX_M0, learning_curve._MAX_TAU = options.slowest, options.longest
    print("| example | NLLs | quarters with all four | gains |\n| --- | --- | --- | --- |")
    for name in examples.names():
        data = examples.load_example(name)
        rows = (data.val.logits, data.val.labels, data.judged.logits, data.judged.labels)
        found = [check_quarter(*rows, rng=seed) for seed in range(QUARTERS)]
        lines = [line for quarter in found for line in quarter.lines]
        gains = [line for line in lines if line.gain is not None]
        cells = (
            name,
            f"{sum(line.inside for line in lines)} of {len(lines)}",
            f"{sum(quarter.holds for quarter in found)} of {len(found)}",
            f"{sum(line.gain_inside for line in gains)} of {len(gains)}",
        )
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
