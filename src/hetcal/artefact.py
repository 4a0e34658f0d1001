"""A fitted calibrator as JSON text and back: versioned, with a checksum, tried before it is handed out."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetcal import calibrators
from hetcal._version import __version__
from hetcal._write import write_atomic
from hetcal.calibrators.base import groups_of
from hetcal.partition import Slices

__all__ = ["SCHEMA", "decode", "encode", "json_schema", "load", "save", "uses_groups"]

SCHEMA = 2
_FORMAT = "hetcal.calibrator"
_TYPES = {name: getattr(calibrators, name) for name in calibrators.__all__}
_DTYPES = {"float64", "int64", "bool"}
_TRIED = 512  # classes that a loaded calibrator is tried on
_ELEMENTS = 1 << 22  # logits that it is tried on, at most
_MOST = 10_000_000  # classes that a file may claim
_OLD_FLOOR = 1e-6  # of probabilities in files, for calibrators of schema 1, which do not say
_TEXT = 1 << 28  # bytes that an array of names may take, each as wide as the longest
# What rebuilding or trying a calibrator can raise when its description makes no sense.
_BROKEN = (
    ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError, MemoryError,
)  # fmt: skip


def save(calibrator: Any, path: str | os.PathLike[str]) -> None:
    """Write a fitted calibrator as one small JSON file that :func:`load` reads back.

    Examples
    --------
    >>> import hetcal, tempfile, pathlib
    >>> cal = hetcal.TemperatureScaling().fit([[2.0, 0.0]] * 4, [0, 0, 0, 1])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     hetcal.save(cal, pathlib.Path(folder, "cal.json"))
    ...     hetcal.load(pathlib.Path(folder, "cal.json")).alpha_ == cal.alpha_
    True
    """
    text = encode(calibrator)
    write_atomic(path, lambda file: file.write(text.encode()))


def load(path: str | os.PathLike[str]) -> Any:
    """Read a calibrator that :func:`save` wrote; damaged files and files of newer versions are refused."""
    source = Path(path)
    if not source.is_file():
        raise FileNotFoundError(f"path must be a calibrator file, got {str(source)!r}, which does not exist")
    try:
        text = source.read_bytes().decode()
    except UnicodeDecodeError:
        raise ValueError(
            f"{source.name} must be a hetcal calibrator in JSON, got bytes that are not text"
        ) from None
    return decode(text, source.name)


def encode(calibrator: Any) -> str:
    """JSON text of a fitted calibrator."""
    body = _pack_calibrator(calibrator)
    if not body["state"]:
        raise ValueError(f"calibrator must be fitted, got {calibrator!r}; call fit first")
    whole = {
        "format": _FORMAT,
        "schema": SCHEMA,
        "hetcal": __version__,
        "checksum": _checksum(body),
        "calibrator": body,
    }
    return json.dumps(whole, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def decode(text: str, name: str) -> Any:
    """Calibrator from JSON text; `name` is what messages call it."""
    try:
        whole = json.loads(text)
        body = whole.get("calibrator") if isinstance(whole, dict) else None
        found = _checksum(body)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{name} must be a hetcal calibrator in JSON, got text that does not parse ({str(error)[:200]}); "
            "save it again"
        ) from None
    if not isinstance(whole, dict) or whole.get("format") != _FORMAT:
        raise ValueError(f"{name} must be a hetcal calibrator (format {_FORMAT!r}), got another JSON file")
    schema = whole.get("schema")
    if not isinstance(schema, int) or isinstance(schema, bool) or schema < 1:
        raise ValueError(f"{name}: schema must be a positive integer, got {schema!r:.20}")
    if schema > SCHEMA:
        raise ValueError(
            f"{name} must have schema {SCHEMA} or lower for hetcal {__version__}, got schema {schema!r:.20} "
            f"(written by hetcal {whole.get('hetcal')!r:.20}); upgrade hetcal"
        )
    if found != whole.get("checksum"):
        raise ValueError(
            f"{name} must be as it was saved, got a checksum that does not match: it was changed or damaged; "
            "save it again"
        )
    try:
        calibrator = _unpack_calibrator(body)
        if schema == 1:
            calibrator.class_names_, calibrator.prob_floor_, calibrator.fitted_on_ = None, _OLD_FLOOR, None
        _check_input(calibrator)
        _try_out(calibrator)
    except _BROKEN as error:
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise ValueError(f"{name} must describe a working calibrator, got one that fails: {what}") from None
    return calibrator


def json_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a saved calibrator, as it lies in the package."""
    text = resources.files("hetcal").joinpath("schema", f"calibrator-{SCHEMA}.schema.json").read_text("utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


def uses_groups(calibrator: Any) -> bool:
    """Whether a fitted calibrator slices by groups, and so needs them to predict."""
    return groups_of(calibrator) is not None


def _checksum(body: Any) -> str:
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return f"sha256:{hashlib.sha256(canonical.encode()).hexdigest()}"


def _pack_calibrator(calibrator: Any) -> dict[str, Any]:
    kind = type(calibrator).__name__
    if _TYPES.get(kind) is not type(calibrator):
        raise TypeError(
            f"calibrator must be one of hetcal's own to be saved, got {type(calibrator).__module__}.{kind}"
        )
    params = calibrator.get_params(deep=False)
    if kind == "AutoCalibrator":
        params.pop("candidates")  # what was chosen is kept; what it was chosen from is in candidates_
    state = {k: v for k, v in vars(calibrator).items() if k.endswith("_") and not k.startswith("_")}
    return {
        "type": kind,
        "params": {k: _pack(v) for k, v in params.items()},
        "state": {k: _pack(v) for k, v in state.items()},
    }


def _unpack_calibrator(body: Any) -> Any:
    kind = body["type"]
    if kind not in _TYPES:
        raise ValueError(f"type must be one of {', '.join(_TYPES)}, got {kind!r}")
    made = _TYPES[kind](**{k: _unpack(v) for k, v in body["params"].items()})
    for key, value in body["state"].items():
        if not re.fullmatch(r"[a-z][a-z0-9_]*_", key):
            raise ValueError(f"state must hold learned attributes, whose names end in '_', got {key!r}")
        learned = _unpack(value)
        rule, holds = _RULES.get(key, ("", None))
        if holds is not None and learned is not None and not holds(np.asarray(learned, dtype=np.float64)):
            raise ValueError(f"{key} must {rule}, got {np.array2string(np.asarray(learned), threshold=6)}")
        setattr(made, key, learned)
    return made


def _is_finite(a: NDArray[Any]) -> bool:
    return bool(np.isfinite(a).all())


def _is_positive(a: NDArray[Any]) -> bool:
    return bool(((a > 0) & np.isfinite(a)).all())


def _is_share(a: NDArray[Any]) -> bool:
    return bool(a.size and ((a >= 0) & (a <= 1)).all())


def _rises(a: NDArray[Any]) -> bool:
    return a.ndim == 1 and _is_share(a) and bool((np.diff(a) >= 0).all())


# What must hold of learned numbers: a trial with some rows cannot show it for all.
_RULES: dict[str, tuple[str, Callable[[NDArray[Any]], bool]]] = {
    **dict.fromkeys(("alpha_", "alpha0_"), ("be positive and finite", _is_positive)),
    **dict.fromkeys(("y_", "values_"), ("lie in [0, 1]", _is_share)),
    **dict.fromkeys(("x_", "edges_"), ("rise from 0 to 1 at most", _rises)),
    **dict.fromkeys(
        ("scale_", "bias_", "slope_", "intercept_", "parameters_", "center_"), ("be finite", _is_finite)
    ),
    "weights_": ("lie in [0, 1] and sum to 1", lambda a: _is_share(a) and bool(abs(a.sum() - 1) < 1e-9)),
}


def _pack(value: Any) -> Any:
    if isinstance(value, Slices):
        return {"slices": {k: _pack(v) for k, v in vars(value).items()}}
    if isinstance(value, np.ndarray):
        return _pack_array(value)
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not np.isfinite(value):
        return {"number": repr(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple):
        return {"tuple": [_pack(v) for v in value]}
    if isinstance(value, list):
        return [_pack(v) for v in value]
    if isinstance(value, dict):
        return {"dict": {str(k): _pack(v) for k, v in value.items()}}
    return {"calibrator": _pack_calibrator(value)}


def _pack_array(array: NDArray[Any]) -> dict[str, Any]:
    if array.dtype.kind in "UO":  # group names, and column names of a data frame
        return {"array": [str(v) for v in array.tolist()], "dtype": "str"}
    wide: NDArray[Any] = array.astype(
        {"f": np.float64, "i": np.int64, "u": np.int64, "b": np.bool_}[array.dtype.kind]
    )
    values = [_pack(v) for v in wide.ravel().tolist()]
    return {"array": values, "dtype": wide.dtype.name, "shape": list(array.shape)}


def _unpack(value: Any) -> Any:
    if isinstance(value, list):
        return [_unpack(v) for v in value]
    if not isinstance(value, dict):
        return value
    if "array" in value:
        return _unpack_array(value)
    if len(value) != 1 or (key := next(iter(value))) not in _UNPACK:
        raise ValueError(f"a value must be one of {', '.join(_UNPACK)} or array, got {sorted(value)[:3]}")
    return _UNPACK[key](value[key])


def _unpack_array(value: dict[str, Any]) -> NDArray[Any]:
    dtype = value["dtype"]
    if dtype == "str":
        names = [str(v) for v in value["array"]]
        if 4 * len(names) * max(map(len, names), default=0) > _TEXT:
            raise ValueError(
                f"names must take {_TEXT} bytes or less, got {len(names)}, some of them too long"
            )
        return np.array(names, dtype=str)
    if dtype not in _DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(sorted(_DTYPES))}, got {dtype!r}")
    return np.array([_unpack(v) for v in value["array"]], dtype=dtype).reshape(value["shape"])


_UNPACK: dict[str, Any] = {
    "number": {"inf": np.inf, "-inf": -np.inf, "nan": np.nan}.__getitem__,
    "tuple": lambda items: tuple(_unpack(v) for v in items),
    "dict": lambda items: {k: _unpack(v) for k, v in items.items()},
    "slices": lambda items: Slices(**{k: _unpack(v) for k, v in items.items()}),
    "calibrator": lambda body: _unpack_calibrator(body),
}


def _check_input(calibrator: Any) -> None:
    """Refuse what is said of the input of a fit where it makes no sense."""
    names, floor, seen = (
        getattr(calibrator, f"{name}_", None) for name in ("class_names", "prob_floor", "fitted_on")
    )
    if names is not None and (
        not isinstance(names, list)
        or len(names) != calibrator.n_features_in_
        or not all(isinstance(name, str) for name in names)
    ):
        raise ValueError(f"class_names_ must be {calibrator.n_features_in_} texts or null, got {names!r:.60}")
    number = isinstance(floor, float) and 0 < floor <= 0.5
    if floor is not None and not number:
        raise ValueError(f"prob_floor_ must be a number in (0, 0.5] or null, got {floor!r:.60}")
    if seen is not None:
        sample = seen.get("sample") if isinstance(seen, dict) else None
        hashes = [*(sample if isinstance(sample, list) else [None]), seen.get("sum") or "0"]
        if not all(isinstance(text, str) and re.fullmatch(r"[0-9a-f]{1,16}", text) for text in hashes):
            raise ValueError(f"fitted_on_ must hold hashes of 16 digits, got {seen!r:.60}")


def _try_out(made: Any) -> None:
    """Predict on rows of every class in every group, or on as many of these pairs as there is time for."""
    n_classes = made.n_features_in_
    if not isinstance(n_classes, int) or isinstance(n_classes, bool) or not 2 <= n_classes <= _MOST:
        raise ValueError(f"n_features_in_ must be an integer in 2..{_MOST}, got {n_classes!r}")
    names = groups_of(made)
    shown, n_groups = min(n_classes, _TRIED), 1 if names is None else len(names)
    if not n_groups:
        raise ValueError("groups must be at least one, got none")
    n = min(shown * n_groups, max(1, _ELEMENTS // n_classes))
    group, place = np.divmod(np.linspace(0, shown * n_groups - 1, n).astype(int), shown)
    z = np.zeros((n, n_classes))
    z[np.arange(n), np.linspace(0, n_classes - 1, shown).astype(int)[place]] = 3.0
    with np.errstate(all="ignore"):
        p = made.predict_proba(z, groups=None if names is None else names[group])
    kept = not made.preserves_decision or np.array_equal(p.argmax(axis=1), z.argmax(axis=1))
    if not np.allclose(p.sum(axis=1), 1) or p.min() < 0 or not kept:
        raise ValueError("its probabilities do not sum to 1, or change a decision that they must keep")
