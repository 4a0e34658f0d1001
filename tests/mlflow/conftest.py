"""An MLflow tracking store in a temporary folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Address of an empty database; MLflow creates its tables once for all tests."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'mlflow.db'}"


@pytest.fixture
def experiment(database: str, tmp_path: Path) -> Iterator[str]:
    """Identifier of a new experiment, which is the current one during the test."""
    import mlflow

    before = mlflow.get_tracking_uri(), mlflow.get_registry_uri()
    mlflow.set_tracking_uri(database)
    identifier = mlflow.create_experiment(str(tmp_path), artifact_location=(tmp_path / "artifacts").as_uri())
    mlflow.set_experiment(experiment_id=identifier)
    yield identifier
    while mlflow.active_run() is not None:
        mlflow.end_run()
    mlflow.set_tracking_uri(before[0])
    mlflow.set_registry_uri(before[1])


@pytest.fixture
def run(experiment: str) -> Iterator[Any]:
    """The active run."""
    import mlflow

    with mlflow.start_run() as active:
        yield active
