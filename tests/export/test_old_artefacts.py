"""Files that earlier versions saved still load and predict the same."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import hetcal

ARTEFACTS = Path(__file__).parent / "artefacts"
EXPECTED = {
    version: json.loads((ARTEFACTS / f"expected-{version}.json").read_text()) for version in ("0.1", "0.2")
}
FILES = sorted(ARTEFACTS.glob("0.*/*.json"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_saved_calibrator_predicts_the_same(path):
    rows = EXPECTED[path.parent.name]
    expected = rows["calibrators"][path.stem]
    groups = rows["groups"] if expected["grouped"] else None
    p = hetcal.load(path).predict_proba(rows["logits"], groups=groups)
    np.testing.assert_allclose(p, expected["probabilities"], rtol=0, atol=1e-12)


@pytest.mark.parametrize("version", EXPECTED)
def test_every_calibrator_of_a_version_is_covered(version):
    types = {json.loads(path.read_text())["calibrator"]["type"] for path in FILES if version in path.parts}
    assert len(types) == 11
