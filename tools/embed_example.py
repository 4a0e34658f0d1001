"""Create an example data set from a finished run: validation and test logits with their provenance.

    python tools/embed_example.py STORE RUN CLASS_NAMES OUT

STORE is the output folder of `hetcal train`, RUN the name of a run in it, CLASS_NAMES a text file of
names without spaces, one per line, and OUT the `.npz` file to write.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from hetcal_paper.evaluate_run import stored_choice
from hetcal_paper.files import write_atomic
from hetcal_paper.runs import Run

DATA = {"c10": "CIFAR-10", "c100": "CIFAR-100"}
NETWORKS = {"resnet20": "ResNet-20", "wrn28x10": "WideResNet-28-10"}


def title_of(run: Run) -> str:
    """Return a one-line description of the run."""
    where = "all classes" if run.classes is None else f"classes {run.classes[0]}-{run.classes[1]}"
    what = {
        "clean": "clean labels",
        "noise": f"{run.rate or 0:.0%} label noise on {where} in training",
        "under": f"{run.rate or 0:.0%} of the training rows of {where}",
        "few": f"{run.per_class} training rows per class",
    }[run.kind]
    return f"{DATA[run.data]}, {NETWORKS[run.network]}, {what}"


def main() -> None:
    """Read one run and write its example file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("store", "run", "class_names", "out"):
        parser.add_argument(name)
    options = parser.parse_args()
    record = json.loads(Path(options.store, f"{options.run}.json").read_text())
    choice = stored_choice(record)
    val, test = record["keys"][choice]
    with np.load(Path(options.store, f"{options.run}.npz"), allow_pickle=False) as archive:
        arrays = {"val_logits": archive[val], "test_logits": archive[test]}
        arrays |= {key: archive[key] for key in ("val_labels", "test_labels")}
    epoch = record["epochs"][choice]
    run = Run.from_dict(record["run"])
    last = record["epochs"]["last"]
    text = (
        f"Run {run.name}: {record['n_train']:,} training rows, best validation epoch {epoch} of {last}"
        f"{', when training stopped early' if last < run.epochs else ''}, "
        f"test accuracy {record['accuracy'][choice]['test']:.4f}, "
        f"trained with hetcal on {record['device']}."
    )
    about = {
        "title": title_of(run),
        "text": text,
        "epoch": epoch,
        "kept": {k: record[k] for k in record if k != "history"},
    }
    arrays["class_names"] = np.array(Path(options.class_names).read_text().split())
    arrays["provenance"] = np.array(json.dumps(about))
    write_atomic(options.out, lambda file: np.savez_compressed(file, allow_pickle=False, **arrays))


if __name__ == "__main__":
    main()
