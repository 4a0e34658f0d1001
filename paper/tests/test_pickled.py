"""Pickles read as data: what plain ones hold, and that hostile ones do nothing."""

from __future__ import annotations

import builtins
import os
import pickle
from typing import Any

import numpy as np
import pytest

from hetcal_paper.pickled import read_plain

PLAIN = {
    b"labels": [1, 2, 300, 70_000, -1],
    "text": ("a", b"b", "ü"),
    "none": None,
    b"yes": [True, False, 1.5],
}


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_containers_numbers_and_text(protocol: int) -> None:
    assert read_plain(pickle.dumps(PLAIN, protocol=protocol), "x") == PLAIN


@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_of_bytes(order: Any) -> None:
    pixels = np.asarray(np.arange(12, dtype=np.uint8).reshape(3, 4), order=order)
    content = {b"data": pixels, b"more": pixels[:2].copy()}
    found = read_plain(pickle.dumps(content, protocol=2), "x")
    assert found.keys() == content.keys()
    assert all(np.array_equal(found[key], content[key]) for key in content)


def test_a_file_of_python_2() -> None:
    """As cPickle wrote the official files: text as bytes, and numpy's core under its old name."""
    content = (
        b"\x80\x02}q\x01(U\x06labelsq\x02]q\x03(K\x06K\x09eU\x04dataq\x04cnumpy.core.multiarray\n_reconstruct\n"
        b"q\x05cnumpy\nndarray\nq\x06K\x00\x85U\x01b\x87Rq\x07(K\x01K\x02K\x03\x86cnumpy\ndtype\nq\x08U\x02u1K\x00"
        b"K\x01\x87Rq\x09(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T\x06\x00\x00\x00\x00\x01\x02"
        b"\x03\x04\x05tbu."
    )
    theirs = pickle.loads(content, encoding="bytes")  # noqa: S301 - written above
    ours = read_plain(content, "x")
    assert ours[b"labels"] == theirs[b"labels"] == [6, 9]
    assert np.array_equal(ours[b"data"], theirs[b"data"])
    assert ours[b"data"].tolist() == [[0, 1, 2], [3, 4, 5]]


class Call:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.what = (function, arguments)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.what


HOSTILE = {
    "system": Call(os.system, "exit 1"),
    "eval": Call(builtins.eval, "1"),
    "getattr": Call(getattr, "a", "upper"),
    "object array": np.array([Call(os.getcwd)], dtype=object),
    "floats": np.zeros(3),
    "set": {1, 2},
}


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("name", HOSTILE)
def test_whatever_would_be_called_is_refused(name: str, protocol: int) -> None:
    with pytest.raises(ValueError, match="x must contain only arrays and built-in types, got"):
        read_plain(pickle.dumps({b"data": HOSTILE[name]}, protocol=protocol), "x")


def test_codecs_are_not_looked_up_by_name() -> None:
    content = b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x05\x00\x00\x00rot13\x86R."
    with pytest.raises(ValueError, match="text as 'rot13'"):
        read_plain(content, "x")


def test_references_to_references_stay_small() -> None:
    """Each of forty lists holds the one before it twice: 2⁴⁰ elements for who walks through them."""
    content = b"\x80\x02]q\x00" + b"".join(b"]q%c(h%ch%ce" % (i, i - 1, i - 1) for i in range(1, 40)) + b"."
    with pytest.raises(ValueError, match="must contain only"):  # forty values are left, not one
        read_plain(content, "x")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of escapes in damaged text
def test_random_damage_is_refused_or_harmless() -> None:
    rng = np.random.default_rng(0)
    sound = pickle.dumps(
        {b"data": np.arange(60, dtype=np.uint8).reshape(5, 12), b"labels": [1] * 5}, protocol=2
    )
    refused = 0
    for _ in range(500):
        changed = bytearray(sound)
        changed[rng.integers(len(sound))] = rng.integers(256)
        try:
            read_plain(bytes(changed[: rng.integers(1, len(sound) + 1)]), "x")
        except ValueError as error:
            assert str(error).startswith("x must contain only arrays")  # noqa: PT017
            refused += 1
    assert refused > 250
