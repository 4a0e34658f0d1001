"""Calibrators and calibrated classifiers as MLflow models.

This module is a flavour of MLflow: MLflow calls its functions `save_model` and `_load_pyfunc`. A saved model
is a folder. Every calibrator is saved in it as a JSON file of :func:`hetcal.save`. Every estimator of a
:class:`hetcal.CalibratedClassifier` is saved in it as a model of MLflow's own flavour for scikit-learn.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from hetcal._columns import class_names_of, column_names
from hetcal._extras import missing_package
from hetcal._validate import ProbabilitiesGiven, check_flag
from hetcal._version import __version__
from hetcal.artefact import load, save, uses_groups
from hetcal.calibrators.base import Calibrator, groups_of
from hetcal.sklearn import CalibratedClassifier, Member, members_of, restore_classifier

try:
    import mlflow
    import pandas as pd
    from mlflow.models import Model, ModelSignature, infer_signature
    from mlflow.models.model import ModelInfo
    from mlflow.types import ColSpec, DataType, Schema, TensorSpec
except ImportError as error:
    raise missing_package("hetcal.mlflow needs MLflow and pandas", "mlflow") from error

__all__ = ["FLAVOR", "default_requirements", "load_model", "log_model", "save_model"]

FLAVOR = "hetcal"  # name of the flavour in the file MLmodel
_ABOUT = "hetcal.json"  # file that describes the content of the folder
_CALIBRATOR = "calibrator.json"
_REQUIRED = ("numpy", "pandas", "scikit-learn", "scipy", "threadpoolctl")
_LABEL_KINDS = "biufU"  # kinds of NumPy dtypes of class labels that JSON can represent


def save_model(
    model: Any,
    path: str | os.PathLike[str],
    *,
    from_probs: bool = False,
    signature: ModelSignature | bool | None = None,
    input_example: Any = None,
    estimator_options: Mapping[str, Any] | None = None,
    pip_requirements: Sequence[str] | str | None = None,
    extra_pip_requirements: Sequence[str] | None = None,
    conda_env: Any = None,
    code_paths: Sequence[str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    mlflow_model: Model | None = None,
) -> None:
    """Save a fitted calibrator or classifier as an MLflow model, in a new folder.

    ``mlflow.pyfunc.load_model(path).predict`` returns calibrated probabilities: an array (n, K) for an array,
    or a data frame with a column per class for a data frame.

    Parameters
    ----------
    model : fitted calibrator of hetcal, or fitted :class:`hetcal.CalibratedClassifier`
        A calibrator takes logits or, with `from_probs`, probabilities. A classifier takes the input of its
        estimator.
    path : folder to create
    from_probs : whether a calibrator takes probabilities instead of logits
    signature : ModelSignature or bool, optional
        By default, or if True, the input of a calibrator is a table with a column per class if the classes
        have distinct names and the calibrator was not fitted by group. Otherwise, the input is a float64
        array named ``logits`` or ``probs``, followed by an array named ``groups`` if the calibrator was
        fitted by group. For a classifier, the signature is inferred from `input_example`; without an example,
        there is no signature. False saves no signature: MLflow then accepts tables and arrays of any type,
        and only hetcal checks them.
    input_example : rows of input, which MLflow stores with the model
        For a calibrator, the default is one row that is generated.
    estimator_options : keyword arguments of ``mlflow.sklearn.save_model`` for the estimator of a classifier
        For example ``{"serialization_format": "skops"}``.
    pip_requirements : requirements for pip, which describe the environment of the model
        By default those of :func:`default_requirements`, and those of the estimator of a classifier. With
        `conda_env`, there is no default.
    extra_pip_requirements, conda_env, code_paths, metadata, mlflow_model : as in ``mlflow.pyfunc.save_model``
    """
    check_flag(from_probs, "from_probs")
    _check_model(model)
    if from_probs and isinstance(model, CalibratedClassifier):
        raise ValueError(
            "from_probs must be False for a CalibratedClassifier, got True; leave it out, because the "
            "classifier takes the input of its estimator"
        )
    served = _Served(model, from_probs)
    if input_example is None and isinstance(model, Calibrator):
        input_example = _example(model, served)
    if signature is None or signature is True:
        signature = _signature(model, served, input_example)
    requirements = pip_requirements
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, FLAVOR)
        nested = _write(model, from_probs, data, estimator_options or {})
        if requirements is None and conda_env is None:
            requirements = sorted({*default_requirements(), *nested, *(extra_pip_requirements or ())})
            extra_pip_requirements = None
        document = Model() if mlflow_model is None else mlflow_model
        document.add_flavor(FLAVOR, hetcal_version=__version__, data=f"data/{FLAVOR}")
        mlflow.pyfunc.save_model(
            path=os.fspath(path),
            loader_module=__name__,
            data_path=str(data),
            code_paths=None if code_paths is None else list(code_paths),
            conda_env=conda_env,
            mlflow_model=document,
            signature=signature or None,
            input_example=input_example,
            pip_requirements=requirements,
            extra_pip_requirements=extra_pip_requirements,
            metadata=None if metadata is None else dict(metadata),
        )


def log_model(
    model: Any,
    name: str = "model",
    *,
    registered_model_name: str | None = None,
    run_id: str | None = None,
    **options: Any,
) -> ModelInfo:
    """Log a fitted calibrator or classifier as an MLflow model, in the active run or in the given one.

    Parameters
    ----------
    model : as in :func:`save_model`
    name : name of the model
    registered_model_name : also register a version of the model under this name
    run_id : run to which the model belongs
        By default the active run. If no run is active, the model belongs to none.
    **options
        Arguments of :func:`save_model`, or of ``mlflow.models.Model.log``, such as `tags` and `params`.

    Returns
    -------
    mlflow.models.model.ModelInfo
        Its attribute ``model_uri`` can be passed to :func:`load_model`.
    """
    return Model.log(
        artifact_path=None,
        name=name,
        flavor=sys.modules[__name__],
        registered_model_name=registered_model_name,
        run_id=run_id,
        model=model,
        **options,
    )


def load_model(model_uri: str | os.PathLike[str], dst_path: str | None = None) -> Any:
    """Load what :func:`save_model` saved or :func:`log_model` logged: a calibrator or a classifier.

    Parameters
    ----------
    model_uri : folder, or an address such as ``runs:/<run>/model`` or ``models:/<name>/<version>``
    dst_path : folder for files that MLflow downloads, optional
    """
    folder = Path(mlflow.artifacts.download_artifacts(artifact_uri=os.fspath(model_uri), dst_path=dst_path))
    flavors = Model.load(str(folder)).flavors
    if FLAVOR not in flavors:
        raise ValueError(
            f"model_uri must be a model that hetcal.mlflow saved, got one of other flavours "
            f"({', '.join(sorted(flavors))}); "
            "load other models with mlflow.pyfunc.load_model"
        )
    return _read(folder / flavors[FLAVOR]["data"]).model


def default_requirements() -> list[str]:
    """Return requirements for pip: the installed versions of hetcal and of what it needs to serve a model.

    MLflow is not among them, because MLflow adds itself when it saves a model.
    """
    return sorted({f"hetcal=={__version__}", *_pins(_REQUIRED)})


def _load_pyfunc(path: str) -> _Served:
    """Load the object whose method `predict` serves the model; MLflow calls this function."""
    return _read(Path(path))


class _Served:
    """A model with the method `predict` that MLflow expects."""

    def __init__(self, model: Any, from_probs: bool) -> None:
        self.model = model
        self.from_probs = from_probs

    @property
    def input_name(self) -> str:
        """Name of the input of a calibrator."""
        return "probs" if self.from_probs else "logits"

    def predict(self, model_input: Any, params: Mapping[str, Any] | None = None) -> Any:  # noqa: ARG002
        """Calibrated probabilities, as a data frame for a data frame and otherwise as an array."""
        if isinstance(self.model, CalibratedClassifier):
            return self._classify(model_input)
        values, groups = self._unpack(model_input)
        try:
            if self.from_probs:
                p = self.model.predict_proba(probs=values, groups=groups)
            else:
                p = self.model.predict_proba(values, groups=groups)
        except ProbabilitiesGiven as error:
            raise ValueError(f"{error} to predict_proba, or save the model with from_probs=True") from None
        if isinstance(values, pd.DataFrame):
            columns = class_names_of(column_names(values) or ())
            return pd.DataFrame(
                p, index=values.index, columns=columns if len(columns) == p.shape[1] else None
            )
        return p

    def get_raw_model(self) -> Any:
        """Return the calibrator or the classifier."""
        return self.model

    def _unpack(self, model_input: Any) -> tuple[Any, Any]:
        """Logits or probabilities, and groups or None."""
        if not isinstance(model_input, dict):
            return model_input, None
        expected = {self.input_name, "groups"} if uses_groups(self.model) else {self.input_name}
        if model_input.keys() != expected:
            raise ValueError(
                f"model_input must have the keys {sorted(expected)}, got {sorted(model_input)}; rename, "
                "add or drop entries"
            )
        return model_input[self.input_name], model_input.get("groups")

    def _classify(self, X: Any) -> Any:
        p = self.model.predict_proba(X)
        if isinstance(X, pd.DataFrame):
            return pd.DataFrame(p, index=X.index, columns=[str(c) for c in self.model.classes_.tolist()])
        return p


def _check_model(model: Any) -> None:
    if not isinstance(model, CalibratedClassifier | Calibrator):
        raise TypeError(
            "model must be a fitted calibrator of hetcal or a fitted CalibratedClassifier, got "
            f"{type(model).__name__}; save other models with their own flavour, such as mlflow.pytorch for "
            "hetcal.torch.CalibratedModel"
        )
    check_is_fitted(model)
    if isinstance(model, CalibratedClassifier) and any(map(_is_by_group, model.calibrators_)):
        raise ValueError(
            "model must predict without calibration_groups, got a CalibratedClassifier that needs them; save "
            "each calibrator in calibrators_ separately, and each estimator with mlflow.sklearn"
        )


def _is_by_group(calibrator: Any) -> bool:
    return isinstance(calibrator, Calibrator) and uses_groups(calibrator)


# -- signatures -----------------------------------------------------------------------------------


def _signature(model: Any, served: _Served, input_example: Any) -> ModelSignature | None:
    if isinstance(model, CalibratedClassifier):
        return (
            None if input_example is None else infer_signature(input_example, served.predict(input_example))
        )
    shape, dtype = (-1, model.n_features_in_), np.dtype(np.float64)
    columns = _columns(model)
    if columns is not None:
        names: list[str] = model.class_names_
        inputs, outputs = ([ColSpec(DataType.double, name) for name in part] for part in (columns, names))
        return ModelSignature(Schema(inputs), Schema(outputs))
    arrays = [TensorSpec(dtype, shape, served.input_name)]
    groups = groups_of(model)
    if groups is not None:
        dtype_of_groups = np.dtype(str) if groups.dtype.kind == "U" else groups.dtype
        arrays.append(TensorSpec(dtype_of_groups, (-1,), "groups"))
    return ModelSignature(Schema(arrays), Schema([TensorSpec(dtype, shape)]))


def _columns(calibrator: Calibrator) -> list[str] | None:
    """Columns of the table that a calibrator takes, or None if it takes arrays."""
    names = calibrator.class_names_
    if names is None or uses_groups(calibrator) or len(set(names)) < len(names):
        return None
    return [str(name) for name in getattr(calibrator, "feature_names_in_", names)]


def _example(calibrator: Calibrator, served: _Served) -> Any:
    """One row of input: the first class has probability 1/2, and the others have equal probabilities.

    The row contains the logarithms of these probabilities unless the model takes probabilities. If the
    calibrator was fitted by group, the result also contains a group.
    """
    row = np.full((1, calibrator.n_features_in_), 0.5 / (calibrator.n_features_in_ - 1))
    row[0, 0] = 0.5
    row = row if served.from_probs else np.log(row)
    columns, groups = _columns(calibrator), groups_of(calibrator)
    if columns is not None:
        return pd.DataFrame(row, columns=columns)
    return row if groups is None else {served.input_name: row, "groups": groups[:1]}


# -- files ----------------------------------------------------------------------------------------


def _write(model: Any, from_probs: bool, folder: Path, estimator_options: Mapping[str, Any]) -> set[str]:
    """Write the files of a model, and return the requirements of its estimators."""
    folder.mkdir()
    about: dict[str, Any] = {"schema": 1, "hetcal": __version__, "from_probs": from_probs}
    requirements: set[str] = set()
    if isinstance(model, Calibrator):
        save(model, folder / _CALIBRATOR)
    else:
        members = []
        for number, member in enumerate(members_of(model)):
            part = folder / f"member-{number}"
            part.mkdir()
            save(member.calibrator, part / _CALIBRATOR)
            requirements |= _write_estimator(member.estimator, part / "estimator", estimator_options)
            members.append(
                {"columns": member.columns.tolist(), "method": member.method, "floor": member.floor}
            )
        about |= {
            "ensemble": bool(model.ensemble),
            "response_method": str(model.response_method),
            "classes": _pack_labels(model.classes_),
            "members": members,
        }
    (folder / _ABOUT).write_text(json.dumps(about), encoding="utf-8")
    return requirements


def _write_estimator(estimator: Any, folder: Path, options: Mapping[str, Any]) -> set[str]:
    """Save an estimator with MLflow's flavour for scikit-learn, and return its requirements."""
    requirements = _requirements_of(estimator)
    # With explicit requirements, MLflow does not start a process to find out what the estimator imports.
    options = {"pip_requirements": sorted(requirements)} | dict(options)
    mlflow.sklearn.save_model(estimator, str(folder), **options)
    stored_as = Model.load(str(folder)).flavors["sklearn"]["serialization_format"]
    return requirements | _pins({stored_as})


def _requirements_of(estimator: Any) -> set[str]:
    """Requirements for the packages that define an estimator and the estimators in it."""
    params = estimator.get_params(deep=True) if hasattr(estimator, "get_params") else {}
    parts = [estimator, *(value for value in params.values() if hasattr(value, "get_params"))]
    packages = {type(part).__module__.partition(".")[0] for part in parts}
    distributions = metadata.packages_distributions()
    return _pins({name for package in packages for name in distributions.get(package, [])} - {"hetcal"})


def _pins(names: Iterable[str]) -> set[str]:
    """Requirements that pin distributions to the installed version; those not installed are left out."""
    pins = set()
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            pins.add(f"{name}=={metadata.version(name)}")
    return pins


def _read(folder: Path) -> _Served:
    about = json.loads((folder / _ABOUT).read_text(encoding="utf-8"))
    if "members" not in about:
        return _Served(load(folder / _CALIBRATOR), about["from_probs"])
    members = []
    for number, entry in enumerate(about["members"]):
        part = folder / f"member-{number}"
        estimator = mlflow.sklearn.load_model(str(part / "estimator"))
        columns = np.array(entry["columns"], np.int64)
        calibrator = load(part / _CALIBRATOR)
        members.append(Member(estimator, columns, entry["method"], entry["floor"], calibrator))
    options = {name: about[name] for name in ("ensemble", "response_method")}
    return _Served(restore_classifier(members, _unpack_labels(about["classes"]), **options), False)


def _pack_labels(classes: NDArray[Any]) -> dict[str, Any]:
    is_text = classes.dtype.kind == "O" and all(isinstance(c, str) for c in classes)
    if not is_text and classes.dtype.kind not in _LABEL_KINDS:
        raise TypeError(
            f"the classes of a saved classifier must be numbers or text, got {classes.tolist()[:3]!r}; "
            "convert y to text"
        )
    return {"dtype": classes.dtype.str, "values": classes.tolist()}


def _unpack_labels(packed: Mapping[str, Any]) -> NDArray[Any]:
    return np.array(packed["values"], dtype=np.dtype(packed["dtype"]))
