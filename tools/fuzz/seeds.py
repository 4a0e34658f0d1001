"""Valid files for fuzzing to start from."""

from __future__ import annotations

import io
import json
import tarfile
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import hetcal
from hetcal import artefact
from hetcal.logits_files import save_table
from hetcal_paper import cifar, store
from hetcal_paper.evaluate_run import COLUMNS

__all__ = ["CALIBRATOR", "LABELS", "LOGITS", "NAMES", "READERS", "RUN_ARRAYS", "RUN_RECORD", "seeds_of"]

_Z = np.random.default_rng(0).normal(size=(6, 3)).round(2)
_Y = np.array([0, 1, 2, 0, 1, 2])


def _bytes_of(write: Callable[[Any], object]) -> bytes:
    sink = io.BytesIO()
    write(sink)
    return sink.getvalue()


def _npz(**arrays: Any) -> bytes:
    return _bytes_of(lambda sink: np.savez(sink, **arrays))


def _fitted(calibrator: Any, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hetcal.CalibrationWarning)
        return calibrator.fit(np.tile(_Z, (9, 1)), np.tile(_Y, 9), **options)


LOGITS = _bytes_of(lambda sink: np.save(sink, _Z))
LABELS = _bytes_of(lambda sink: np.save(sink, _Y))
NAMES = _bytes_of(lambda sink: np.save(sink, np.array(["a", "b", "c"])))
CALIBRATOR = _fitted(hetcal.TemperatureScaling())
RUN_ARRAYS = _npz(val_1=_Z, val_labels=_Y, test_1=_Z, test_labels=_Y)
RUN_RECORD = json.dumps({"schema": store.SCHEMA, "keys": {"best": ["val_1", "test_1"]}}).encode()


def seeds_of(name: str) -> list[bytes]:
    """Return valid files for a reader."""
    return _SEEDS[name]()


def _npz_seeds() -> list[bytes]:
    split = {"val_logits": _Z, "val_labels": _Y, "test_logits": _Z, "test_labels": _Y}
    names = {"class_names": np.array(["a", "b", "c"]), "groups": np.array(list("xxyyzz"))}
    return [
        _npz(logits=_Z, labels=_Y),
        _npz(logits=_Z.astype(np.float32), labels=_Y, provenance=np.array('{"title": "t"}'), **names),
        _npz(**split),
        _bytes_of(lambda sink: np.savez_compressed(sink, logits=_Z, labels=_Y)),
    ]


def _tables(suffix: str) -> list[bytes]:
    rows = {"label": _Y, "cat": _Z[:, 0], "dog": _Z[:, 1], "cow": _Z[:, 2]}
    tables = [
        {"logits": _Z, "label": _Y},
        {"group": np.array(list("xxyyzz")), "split": np.array(["val", "test"] * 3)} | rows,
        rows | {"label": np.array(["cat", "dog", "cow"] * 2)},
    ]
    out = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"t{suffix}")
        for table in tables:
            save_table(path, table)
            out.append(path.read_bytes())
    return out


def _bodies() -> list[dict[str, Any]]:
    calibrators = [
        CALIBRATOR,
        _fitted(hetcal.Identity()),
        _fitted(hetcal.VectorScaling(0.1, center=True, keep_decision=True)),
        _fitted(hetcal.PlattScaling()),
        _fitted(hetcal.TopLabelIsotonic()),
        _fitted(hetcal.TopLabelHistogram()),
        _fitted(hetcal.ClassWiseTemperatureScaling(0.1)),
        _fitted(hetcal.ClassWiseTemperatureScaling("bayes", bundles=2)),
        _fitted(hetcal.ClassWise(hetcal.PlattScaling(), gamma="bayes"), groups=["a", "b", "c"] * 18),
        _fitted(hetcal.ClassWise(hetcal.TopLabelIsotonic(), min_samples=1)),
        _fitted(hetcal.Chain([hetcal.TemperatureScaling(), hetcal.PlattScaling()])),
        _fitted(hetcal.Mixture([hetcal.TemperatureScaling(), hetcal.Identity()])),
        _fitted(hetcal.AutoCalibrator(cv=2)),
    ]
    return [json.loads(artefact.encode(cal)) for cal in calibrators]


def _records(label_bytes: int) -> bytes:
    return b"".join(bytes([k % 10] * label_bytes) + bytes([k]) * 3072 for k in range(2))


def _archives() -> list[bytes]:
    base = cifar.DATA_SETS["c10"].folder
    out = []
    for mode in ("w", "w:gz"):
        sink = io.BytesIO()
        with tarfile.open(fileobj=sink, mode=mode) as tar:  # type: ignore[call-overload]
            for name in ("data_batch_1.bin", "test_batch.bin"):
                entry = tarfile.TarInfo(f"{base}/{name}")
                entry.size = 10
                tar.addfile(entry, io.BytesIO(b"0123456789"))
        out.append(sink.getvalue())
    return out


def _results() -> list[bytes]:
    line = {"run": "r", "chosen": "best=3 last=9", "choice": "best", "method": "Uncal", "metric": "accuracy"}
    line |= {"half": "all", "value": "0.5", "bin": "1", "bins": ""}
    tables = [(columns, [line.get(column, "") for column in columns]) for columns in COLUMNS.values()]
    return [f"{','.join(head)}\n{','.join(fields)}\n".encode() for head, fields in tables]


def _models() -> list[bytes]:
    out = []
    for opset, kind in ((18, TensorProto.FLOAT), (17, TensorProto.DOUBLE), (21, TensorProto.FLOAT)):
        dtype = np.float32 if kind == TensorProto.FLOAT else np.float64
        graph = helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], ["scores"])],
            "net",
            [helper.make_tensor_value_info("x", kind, ["n", 2])],
            [helper.make_tensor_value_info("scores", kind, ["n", 3])],
            [numpy_helper.from_array(np.ones((2, 3), dtype), "w")],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
        onnx.checker.check_model(model)
        out.append(model.SerializeToString())
    return out


_SEEDS: dict[str, Callable[[], list[bytes]]] = {
    "npz": _npz_seeds,
    "npz_member": lambda: [bytes([i]) + content for i in range(4) for content in (LOGITS, LABELS, NAMES)],
    "npy": lambda: [LOGITS, _bytes_of(lambda sink: np.save(sink, np.asfortranarray(_Z, np.float16)))],
    "npy_labels": lambda: [LABELS, _bytes_of(lambda sink: np.save(sink, _Y.astype(np.uint8)))],
    "csv": lambda: _tables(".csv"),
    "parquet": lambda: _tables(".parquet"),
    "calibrator": lambda: [json.dumps(whole).encode() for whole in _bodies()],
    "calibrator_body": lambda: [json.dumps(whole["calibrator"]).encode() for whole in _bodies()],
    "cifar_binary": lambda: [_records(1), _records(2)],
    "cifar_archive": _archives,
    "store_record": lambda: [RUN_RECORD],
    "store_arrays": lambda: [RUN_ARRAYS],
    "results": _results,
    "onnx": _models,
}

READERS = tuple(_SEEDS)
