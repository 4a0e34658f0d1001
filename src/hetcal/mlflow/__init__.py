"""MLflow: reports in runs, and calibrated models that MLflow saves, logs, loads and serves."""

from hetcal.mlflow.model import default_requirements, load_model, log_model, save_model
from hetcal.mlflow.report import log_report

__all__ = ["default_requirements", "load_model", "log_model", "log_report", "save_model"]
