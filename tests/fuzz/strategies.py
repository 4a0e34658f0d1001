"""Strategies for valid and invalid input, and checks that every result must satisfy."""

from __future__ import annotations

import functools
import os
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone

import hetcal as h
from hetcal.calibrators.base import REGISTRY

seeds = st.integers(0, 10**6)
# Fits to extreme logits may warn that they failed; see `test_moderate_logits_converge`.
MAY_NOT_CONVERGE = [
    pytest.mark.filterwarnings("ignore::hetcal.CalibrationWarning"),
    pytest.mark.filterwarnings("ignore:.* did not converge:RuntimeWarning"),
]
EXAMPLES: Counter[str] = Counter()  # number of examples per test
_PROFILE = settings.get_profile(f"hetcal-{os.environ.get('HETCAL_FUZZ', 'ci')}")


def fuzzed(*, share: float = 1.0, **strategies: Any) -> Callable[[Any], Any]:
    """Like `given`, with `share` times the number of examples of the profile (below 1 for slow tests)."""

    def decorate(test: Any) -> Any:
        @functools.wraps(test)
        def counted(*args: Any, **kwargs: Any) -> None:
            EXAMPLES[test.__name__] += 1
            test(*args, **kwargs)

        examples = max(1, round(share * _PROFILE.max_examples))
        return settings(_PROFILE, max_examples=examples)(given(**strategies)(counted))

    return decorate


# -- results --------------------------------------------------------------------------------------


def result_or_error(call: Callable[[], Any]) -> Any:
    """Result of a call, or None if it raised an error in our format; any other error fails the test."""
    try:
        return call()
    except (ValueError, TypeError) as error:
        text = str(error)
        ours = type(error) in (ValueError, TypeError) or type(error).__module__.startswith("hetcal.")
        if not ours or not re.match(r"[\w.,:'\[\] ]+ must ", text):
            raise AssertionError(
                f"not in the format of our errors: {type(error).__name__}: {text}"
            ) from error
        return None


def check_probabilities(p: Any, z: Any, *, keeps: bool) -> None:
    """Probabilities must be finite, non-negative, sum to 1, and preserve the decision if `keeps`."""
    z = np.asarray(z)
    assert p.shape == z.shape
    assert p.dtype == (np.float32 if z.dtype in (np.float16, np.float32) else np.float64)
    assert np.isfinite(p).all()
    assert p.min() >= 0
    eps = np.finfo(p.dtype).eps
    assert np.abs(p.sum(axis=1, dtype=np.float64) - 1).max() <= 16 * eps * np.sqrt(p.shape[1])
    if keeps:
        np.testing.assert_array_equal(p.argmax(axis=1), z.argmax(axis=1))


# -- rows -----------------------------------------------------------------------------------------

FLOATS = (np.float16, np.float32, np.float64)
INTEGERS = (np.int8, np.int16, np.int32, np.int64)


def _tame(rng: np.random.Generator, shape: tuple[int, int]) -> Any:
    z = rng.normal(scale=1.5, size=shape)
    z[np.arange(shape[0]), rng.integers(shape[1], size=shape[0])] += rng.uniform(0, 8, size=shape[0])
    return z


def _tied(rng: np.random.Generator, shape: tuple[int, int]) -> Any:
    return rng.integers(-2, 3, size=shape).astype(float)


def _constant(rng: np.random.Generator, shape: tuple[int, int]) -> Any:
    z = _tame(rng, shape)
    flat = rng.random(shape[0]) < 0.5
    z[flat] = z[flat, :1]
    return z


def _huge(rng: np.random.Generator, shape: tuple[int, int]) -> Any:
    return _tame(rng, shape) / 100 * rng.choice([1e3, 1e30, 1e38])


def _tiny(rng: np.random.Generator, shape: tuple[int, int]) -> Any:
    return _tame(rng, shape) * rng.choice([1e-3, 1e-38, 1e-300])


def _masked(rng: np.random.Generator, shape: tuple[int, int]) -> Any:
    z = _tame(rng, shape)
    z[rng.random(shape) < 0.3] = rng.choice([-1e4, -3e38])
    return z


def _mixed_magnitudes(rng: np.random.Generator, shape: tuple[int, int]) -> Any:
    ends = [0.0, -0.0, 1.0, -1.0, 1e-38, 1e38, -1e38, 1e-6, 100.0, -100.0, 710.0, 88.0]
    return rng.choice(ends, size=shape)


def _shifted(rng: np.random.Generator, shape: tuple[int, int]) -> Any:
    return _tame(rng, shape) + rng.choice([1e4, -1e4])


CONTENTS = {
    f.__name__.strip("_"): f
    for f in (_tame, _tied, _constant, _huge, _tiny, _masked, _mixed_magnitudes, _shifted)
}
MODERATE = ("tame", "tied", "constant")


def _fortran(a: Any) -> Any:
    return np.asfortranarray(a)


def _strided(a: Any) -> Any:
    return np.repeat(np.repeat(a, 2, axis=0), 3, axis=1)[::2, ::3]


def _backwards(a: Any) -> Any:
    return np.ascontiguousarray(a[::-1, ::-1])[::-1, ::-1]


def _read_only(a: Any) -> Any:
    a = a.copy()
    a.setflags(write=False)
    return a


LAYOUTS = (np.ascontiguousarray, _fortran, _strided, _backwards, _read_only)


@dataclass(frozen=True, eq=False, repr=False)
class Case:
    """Rows to fit on. The repr shows the parameters they were generated from instead of the arrays."""

    z: Any
    y: Any
    parameters: tuple[Any, ...]
    rng: np.random.Generator

    def __repr__(self) -> str:
        return f"Case{self.parameters}"


def rows_of(seed: int, n: int, k: int, content: str, dtype: Any, layout: Any, truth: str) -> Case:
    """Generate logits and labels."""
    rng = np.random.default_rng(seed)
    with np.errstate(over="ignore"):
        z = CONTENTS[content](rng, (n, k))
        if np.dtype(dtype).kind == "i":
            z = np.clip(np.round(z), -100, 100)
        z = z.astype(dtype)
    z = np.where(np.isfinite(z), z, 0).astype(dtype)
    if z.min() >= 0 and z.max() <= 1:  # would be rejected as probabilities
        z[:, 0] -= 3
    guess = z.argmax(axis=1)
    y = {
        "random": lambda: rng.integers(k, size=n),
        "right": lambda: guess,
        "wrong": lambda: (guess + 1) % k,
        "one class": lambda: np.full(n, rng.integers(k)),
        "few classes": lambda: rng.integers(min(k, 2), size=n),
        "likely": lambda: np.where(rng.random(n) < 0.7, guess, rng.integers(k, size=n)),
    }[truth]()
    return Case(layout(z), y, (seed, n, k, content, np.dtype(dtype).name, layout.__name__, truth), rng)


TRUTHS = ("likely", "random", "right", "wrong", "one class", "few classes")


@st.composite
def cases(
    draw: Any,
    *,
    contents: Any = tuple(CONTENTS),
    max_n: int = 60,
    dtypes: Any = FLOATS + INTEGERS,
    wide: int = 12,
) -> Case:
    """Rows that every calibrator must accept; `wide` is the largest number of classes."""
    k = draw(st.integers(2, min(wide, 12)) if wide <= 12 else st.sampled_from([2, 3, 5, 17, 100, wide]))
    n = draw(st.one_of(st.integers(1, 4), st.integers(1, max(4, min(max_n, 60_000 // k)))))
    return rows_of(
        draw(st.integers(0, 10**6)),
        n,
        k,
        draw(st.sampled_from(contents)),
        draw(st.sampled_from(dtypes)),
        draw(st.sampled_from(LAYOUTS)),
        draw(st.sampled_from(TRUTHS)),
    )


LABEL_FORMS: dict[str, Callable[[Any], Any]] = {
    "int64": lambda y: y.astype(np.int64),
    "uint8": lambda y: y.astype(np.uint8) if y.max() < 256 else y,
    "float": lambda y: y.astype(np.float32),
    "list": lambda y: y.tolist(),
    "column": lambda y: y[:, None],
    "objects": lambda y: y.astype(object),
    "strided": lambda y: np.repeat(y, 2)[::2],
}
label_forms = st.sampled_from(list(LABEL_FORMS.values()))


# -- bad input ------------------------------------------------------------------------------------

BAD_NUMBERS = st.sampled_from(
    [0, -1, 1, 2, 0.5, 1.5, np.nan, np.inf, -np.inf, "a", None, True, [], 1e300, 1e-300, 3]
)


def corrupt(rng: np.random.Generator, array: Any) -> Any:
    """Return the array with one modification, which is usually invalid."""
    a = np.array(array, copy=True)
    index = tuple(int(rng.integers(s)) for s in a.shape)
    put = lambda value, dtype=float: _put(a.astype(dtype), index, value)  # noqa: E731
    changes: list[Callable[[], Any]] = [
        lambda: put(np.nan),
        lambda: put(np.inf),
        lambda: put(-np.inf, np.float32),
        lambda: put(-1),
        lambda: put(1e300),
        lambda: put(10**9, np.int64) if a.dtype.kind != "f" else put(1e38),
        lambda: put(None, object),
        lambda: put("x", object),
        lambda: a.astype(str),
        lambda: a.astype("S"),
        lambda: a + 0.5,
        lambda: a.astype(complex),
        lambda: a.astype(bool),
        lambda: a.astype("M8[s]") if a.dtype.kind == "i" else a.astype("m8[s]") if a.dtype.kind == "i" else a,
        lambda: a[:0],
        lambda: a[None],
        lambda: a[..., :1],
        lambda: a.ravel(),
        lambda: a[0],
        lambda: a.tolist()[:-1],
        lambda: np.ma.masked_array(a, mask=False),
        lambda: None,
        lambda: "rows",
        dict,
        lambda: 3,
        lambda: [[1.0, 2.0], [1.0]],
        lambda: np.longdouble(1) * a,
        lambda: a.astype(">f4"),
        lambda: np.full(a.shape, 1 / a.shape[-1]),
    ]
    return changes[rng.integers(len(changes))]()


def _put(a: Any, index: tuple[int, ...], value: Any) -> Any:
    a[index] = value
    return a


# -- calibrators ----------------------------------------------------------------------------------

bounds = st.sampled_from([(0.01, 100.0), (0.5, 2.0), (1e-6, 1e9)])


def _temperature(draw: Any) -> Any:
    return h.TemperatureScaling(draw(bounds))


def _classwise_temperature(draw: Any) -> Any:
    gamma = draw(st.sampled_from([0, 0.1, 3.0, np.inf]))
    return h.ClassWiseTemperatureScaling(
        gamma, draw(bounds), bundles=draw(st.sampled_from([None, None, 1, 2]))
    )


def _vector(draw: Any) -> Any:
    return h.VectorScaling(
        draw(st.sampled_from([0.0, 1e-3, 1.0])), center=draw(st.booleans()), keep_decision=draw(st.booleans())
    )


def _by_class(draw: Any) -> Any:
    base = draw(
        st.sampled_from(
            [
                h.TemperatureScaling(),
                h.PlattScaling(),
                h.PlattScaling(pool=True),
                h.TopLabelIsotonic(),
                h.TopLabelHistogram(3),
                h.VectorScaling(0.01),
                h.VectorScaling(0.01, keep_decision=True),
                h.Identity(),
            ]
        )
    )
    free = isinstance(base, h.TemperatureScaling | h.PlattScaling | h.VectorScaling)
    gamma = draw(st.sampled_from([0, 0.1, np.inf] if free else [0, np.inf]))
    return h.ClassWise(base, gamma, min_samples=draw(st.sampled_from([None, 1, 5])))


def _example(cls: Any) -> Callable[[Any], Any]:
    return lambda draw: clone(draw(st.sampled_from(cls._examples())))


_COMPOSITE = {"AutoCalibrator", "Chain", "Mixture"}
# Every calibrator is drawn from its own examples, unless a strategy below draws more of its options.
SIMPLE: dict[str, Callable[[Any], Any]] = {
    **{
        name: _example(cls)
        for name, cls in sorted(REGISTRY.items())
        if cls.__module__.startswith("hetcal.") and name not in _COMPOSITE and not cls._required_classes
    },
    "TemperatureScaling": _temperature,
    "ClassWiseTemperatureScaling": _classwise_temperature,
    "VectorScaling": _vector,
    "PlattScaling": lambda draw: h.PlattScaling(pool=draw(st.booleans())),
    "TopLabelHistogram": lambda draw: h.TopLabelHistogram(
        draw(st.integers(1, 20)), draw(st.sampled_from(["width", "mass"]))
    ),
    "ClassWise": _by_class,
    "searched": lambda draw: h.ClassWiseTemperatureScaling(
        draw(st.sampled_from([0, 0.1, np.inf])), loss=draw(st.sampled_from(["brier", "ece"]))
    ),
}
SHRUNK: dict[str, Callable[[Any], Any]] = {
    "CTS bayes": lambda draw: h.ClassWiseTemperatureScaling("bayes", draw(bounds)),
    "CTS cv": lambda draw: h.ClassWiseTemperatureScaling("cv", draw(bounds), cv=draw(st.integers(2, 4))),
    "Platt bayes": lambda draw: h.ClassWise(h.PlattScaling(pool=draw(st.booleans())), "bayes"),
}


two_class_calibrators = st.sampled_from(h.BinaryScaling._examples()).map(clone)


@st.composite
def calibrators(draw: Any, kinds: Any = None) -> Any:
    """An unfitted calibrator with random options."""
    makers = {**SIMPLE, **SHRUNK, "Chain": _chain, "Mixture": _mixture}
    return makers[draw(st.sampled_from(list(kinds or makers)))](draw)


def _some(draw: Any) -> list[Any]:
    return [draw(calibrators([*SIMPLE, *SHRUNK])) for _ in range(draw(st.integers(1, 3)))]


def _chain(draw: Any) -> Any:
    return h.Chain(_some(draw))


def _mixture(draw: Any) -> Any:
    members = _some(draw)
    weights = draw(st.sampled_from([None, [1.0] * len(members), list(range(1, len(members) + 1))]))
    return h.Mixture(members, weights)
