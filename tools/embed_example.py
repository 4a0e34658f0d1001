"""Make an embedded example of a finished run: validation and test logits with their provenance.

    python tools/embed_example.py STORE RUN CLASS_NAMES OUT

STORE is the folder that `hetcal train --out` filled, CLASS_NAMES a text file with one name a line.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from hetcal.files import write_atomic

TITLE = "CIFAR-10, ResNet-20, 30% label noise on classes 0-4 in training"


def main() -> None:
    """Read one run, write one file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("store", "run", "class_names", "out"):
        parser.add_argument(name)
    options = parser.parse_args()
    record = json.loads(Path(options.store, f"{options.run}.json").read_text())
    with np.load(Path(options.store, f"{options.run}.npz"), allow_pickle=False) as archive:
        arrays = {key: archive[key] for key in ("val_logits", "val_labels", "test_logits", "test_labels")}
    epoch = record["epochs"]["best"]
    text = (
        f"Run {options.run}: {record['n_train']:,} training rows, best validation epoch {epoch} of "
        f"{record['run']['epochs']}, test accuracy {record['accuracy']['best']['test']:.4f}, "
        f"trained with hetcal on {record['device']}."
    )
    about = {
        "title": TITLE,
        "text": text,
        "epoch": epoch,
        "kept": {k: record[k] for k in record if k != "history"},
    }
    arrays["class_names"] = np.array(Path(options.class_names).read_text().split())
    arrays["provenance"] = np.array(json.dumps(about))
    write_atomic(options.out, lambda file: np.savez_compressed(file, allow_pickle=False, **arrays))


if __name__ == "__main__":
    main()
