"""Example logits that are part of the package."""

from __future__ import annotations

import numpy as np
import pytest

import hetcal
from hetcal import examples


@pytest.mark.parametrize("name", examples.names())
def test_examples(name: str) -> None:
    data = hetcal.load_example(name)
    assert data.test is not None
    assert data.about
    n_classes = data.val.logits.shape[1]
    assert data.class_names is not None
    assert len(data.class_names) == n_classes
    for split in (data.val, data.test):
        np.testing.assert_array_equal(np.unique(split.labels), np.arange(n_classes))


@pytest.mark.parametrize("name", ["cifar11", None, 3, ["cifar10-noisy"]])
def test_unknown_examples(name: object) -> None:
    with pytest.raises(ValueError, match=r"name must .*cifar10-noisy"):
        hetcal.load_example(name)  # type: ignore[arg-type]
