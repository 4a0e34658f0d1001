"""Fitted calibrators as JSON text: versioned, with a checksum, and tested when they are loaded."""

from __future__ import annotations

import hashlib
import json
import os
import re
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import hetcal.calibrators  # noqa: F401  (registers the calibrators of this package)
from hetcal._version import __version__
from hetcal._write import write_atomic
from hetcal.calibrators.base import REGISTRY, Calibrator, groups_of, type_name
from hetcal.partition import Slices

__all__ = ["SCHEMA", "decode", "encode", "json_schema", "load", "save", "uses_groups"]

SCHEMA = 2
_FORMAT = "hetcal.calibrator"
_DTYPES = {"float64", "int64", "bool"}
_TEST_CLASSES = 512  # maximum number of predicted classes for which a loaded calibrator is tested
_TEST_ELEMENTS = 1 << 22  # maximum number of logits in the test, unless one row alone has more
_MAX_CLASSES = 10_000_000  # maximum number of classes of a calibrator in a file
_SCHEMA_1_FLOOR = 1e-6  # `prob_floor_` of calibrators in files of schema 1, which do not store it
_MAX_TEXT_BYTES = 1 << 28  # maximum size of an array of names; each name takes as much space as the longest
# Exceptions that rebuilding or testing a calibrator can raise if its description is invalid.
_BROKEN = (
    ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError, MemoryError,
)  # fmt: skip


def save(calibrator: Any, path: str | os.PathLike[str]) -> None:
    """Write a fitted calibrator as one JSON file that :func:`load` reads back.

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
    """Read a calibrator that :func:`save` wrote, and return it.

    Damaged files, and files of a newer schema than this version supports, raise an error.
    """
    source = Path(path)
    if not source.is_file():
        other = "is not a regular file" if source.exists() else "does not exist"
        problem = "is a folder" if source.is_dir() else other
        raise FileNotFoundError(
            f"path must be a calibrator file, got {str(source)!r}, which {problem}; pass the path of a file "
            "that hetcal.save wrote"
        )
    try:
        text = source.read_bytes().decode()
    except UnicodeDecodeError:
        raise ValueError(
            f"{source.name} must be a hetcal calibrator in JSON, got bytes that are not UTF-8; save it again"
        ) from None
    return decode(text, source.name)


def encode(calibrator: Any) -> str:
    """JSON text of a fitted calibrator."""
    body = _pack_calibrator(calibrator)
    if not body["state"]:
        raise ValueError(f"calibrator must be fitted, got {calibrator!r}; call fit first")
    document = {
        "format": _FORMAT,
        "schema": SCHEMA,
        "hetcal": __version__,
        "checksum": _checksum(body),
        "calibrator": body,
    }
    return json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def decode(text: str, name: str) -> Any:
    """Calibrator from JSON text; error messages call the text `name`."""
    try:
        document = json.loads(text)
        body = document.get("calibrator") if isinstance(document, dict) else None
        checksum = _checksum(body)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{name} must be a hetcal calibrator in JSON, got text that cannot be parsed "
            f"({str(error)[:200]}); save it again"
        ) from None
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise ValueError(
            f"{name} must be a hetcal calibrator (format {_FORMAT!r}), got another JSON file; pass one that "
            "hetcal.save wrote"
        )
    schema = _check_schema(document, name)
    if checksum != document.get("checksum"):
        raise ValueError(
            f"{name} must be unchanged since it was saved, got a checksum that does not match its content; "
            "save it again"
        )
    try:
        calibrator: Any = _unpack_calibrator(body)
        if schema == 1:
            calibrator.class_names_, calibrator.prob_floor_ = None, _SCHEMA_1_FLOOR
            calibrator.fitted_on_ = None
        _check_input(calibrator)
        calibrator._map().check()
        _test_predictions(calibrator)
    except _BROKEN as error:
        cause = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise ValueError(f"{name} must describe a working calibrator, got one that fails: {cause}") from None
    return calibrator


def json_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a saved calibrator, as stored in the package."""
    text = resources.files("hetcal").joinpath("schema", f"calibrator-{SCHEMA}.schema.json").read_text("utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


def uses_groups(calibrator: Any) -> bool:
    """Whether a fitted calibrator treats groups separately and therefore needs them to predict."""
    return groups_of(calibrator) is not None


def _check_schema(document: dict[str, Any], name: str) -> int:
    schema = document.get("schema")
    if not isinstance(schema, int) or isinstance(schema, bool) or schema < 1:
        raise ValueError(
            f"{name}: schema must be a positive integer, got {schema!r:.20}; save the calibrator again"
        )
    if schema > SCHEMA:
        raise ValueError(
            f"{name} must have schema {SCHEMA} or lower for hetcal {__version__}, got schema {schema!r:.20} "
            f"(written by hetcal {document.get('hetcal')!r:.20}); upgrade hetcal"
        )
    return schema


def _checksum(body: Any) -> str:
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return f"sha256:{hashlib.sha256(canonical.encode()).hexdigest()}"


# -- calibrators ----------------------------------------------------------------------------------


def _pack_calibrator(calibrator: Any) -> dict[str, Any]:
    cls = type(calibrator)
    name = type_name(cls)
    if REGISTRY.get(name) is not cls:
        raise TypeError(
            f"calibrator must be one of hetcal's own, or a subclass of Calibrator, to be saved, got {name}; "
            "if the class was redefined after the fit, fit an instance of the new class"
        )
    if cls.__module__ == "__main__":  # in another program, __main__ may define a different class of that name
        raise TypeError(
            f"the class of a saved calibrator must be importable by other programs, got {name}; "
            "move the class to a module"
        )
    params = calibrator.get_params(deep=False)
    state = {k: v for k, v in vars(calibrator).items() if k.endswith("_") and not k.startswith("_")}
    return {
        "type": name,
        "params": {k: _pack(v) for k, v in params.items() if k not in cls._unsaved},
        "state": {k: _pack(v) for k, v in state.items() if k not in cls._unsaved},
    }


def _unpack_calibrator(body: Any) -> Calibrator:
    name = body["type"]
    if name not in REGISTRY:
        raise ValueError(
            f"type must be a calibrator class that has been imported, got {name!r:.60}; "
            "in Python, import the module that defines it"
        )
    calibrator = REGISTRY[name](**{k: _unpack(v) for k, v in body["params"].items()})
    for key, value in body["state"].items():
        if not re.fullmatch(r"[a-z][a-z0-9_]*_", key):
            raise ValueError(
                "state must contain only learned attributes, with lower-case names that start with a letter "
                f"and end in '_', got {key!r}"
            )
        setattr(calibrator, key, _unpack(value))
    return calibrator


def _check_input(calibrator: Any) -> None:
    """Raise ValueError if the attributes that describe the input of `fit` are invalid."""
    names, floor, fingerprint = (
        getattr(calibrator, f"{name}_", None) for name in ("class_names", "prob_floor", "fitted_on")
    )
    if names is not None and (
        not isinstance(names, list)
        or len(names) != calibrator.n_features_in_
        or not all(isinstance(name, str) for name in names)
    ):
        raise ValueError(
            f"class_names_ must be a list of {calibrator.n_features_in_} strings or null, got {names!r:.60}"
        )
    if floor is not None and not (isinstance(floor, float) and 0 < floor <= 0.5):
        raise ValueError(f"prob_floor_ must be a number in (0, 0.5] or null, got {floor!r:.60}")
    if fingerprint is not None:
        entries = fingerprint if isinstance(fingerprint, dict) else {}
        sample = entries.get("sample")
        hashes = [*(sample if isinstance(sample, list) else [None]), entries.get("sum") or "0"]
        if not all(isinstance(text, str) and re.fullmatch(r"[0-9a-f]{1,16}", text) for text in hashes):
            raise ValueError(
                "fitted_on_ must be null, or contain a list 'sample' and optionally 'sum', with hashes of 1 "
                f"to 16 hexadecimal digits in lower case, got {fingerprint!r:.60}"
            )


def _test_predictions(calibrator: Any) -> None:
    """Raise ValueError if predictions are not valid probabilities or change decisions that must be preserved.

    Every pair of predicted class and group is tested, or some of the pairs if there are many.
    """
    n_classes = calibrator.n_features_in_
    if not isinstance(n_classes, int) or isinstance(n_classes, bool) or not 2 <= n_classes <= _MAX_CLASSES:
        raise ValueError(f"n_features_in_ must be an integer in 2..{_MAX_CLASSES}, got {n_classes!r}")
    names = groups_of(calibrator)
    n_tested, n_groups = min(n_classes, _TEST_CLASSES), 1 if names is None else len(names)
    if not n_groups:
        raise ValueError("groups must have at least one name, got none")
    n = min(n_tested * n_groups, max(1, _TEST_ELEMENTS // n_classes))
    group, index = np.divmod(np.linspace(0, n_tested * n_groups - 1, n).astype(int), n_tested)
    z = np.zeros((n, n_classes))
    z[np.arange(n), np.linspace(0, n_classes - 1, n_tested).astype(int)[index]] = 3.0
    with np.errstate(all="ignore"):
        p = calibrator.predict_proba(z, groups=None if names is None else names[group])
    is_preserved = not calibrator.preserves_decision or np.array_equal(p.argmax(axis=1), z.argmax(axis=1))
    if not np.allclose(p.sum(axis=1), 1) or p.min() < 0 or not is_preserved:
        decision = ", and preserve the argmax of the logits" if calibrator.preserves_decision else ""
        raise ValueError(
            f"predicted probabilities must be 0 or more and sum to 1{decision}, got a test input for which "
            "they do not"
        )


# -- values ---------------------------------------------------------------------------------------


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
    if array.dtype.kind in "UO":  # names of groups, or of the columns of a data frame
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
        raise ValueError(
            f"a JSON object must have the key 'array', or a single key out of {', '.join(_UNPACK)}, "
            f"got the keys {sorted(value)[:3]}"
        )
    return _UNPACK[key](value[key])


def _unpack_array(value: dict[str, Any]) -> NDArray[Any]:
    dtype = value["dtype"]
    if dtype == "str":
        names = [str(v) for v in value["array"]]
        if 4 * len(names) * max(map(len, names), default=0) > _MAX_TEXT_BYTES:
            raise ValueError(
                f"names must take {_MAX_TEXT_BYTES} bytes or less, got {len(names)} names that take more"
            )
        return np.array(names, dtype=str)
    if dtype not in _DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(sorted(_DTYPES))} and str, got {dtype!r}")
    return np.array([_unpack(v) for v in value["array"]], dtype=dtype).reshape(value["shape"])


_UNPACK: dict[str, Any] = {
    "number": {"inf": np.inf, "-inf": -np.inf, "nan": np.nan}.__getitem__,
    "tuple": lambda items: tuple(_unpack(v) for v in items),
    "dict": lambda items: {k: _unpack(v) for k, v in items.items()},
    "slices": lambda items: Slices(**{k: _unpack(v) for k, v in items.items()}),
    "calibrator": lambda body: _unpack_calibrator(body),
}
