"""Estimates of how many validation rows calibration needs: by method, by class and by the paper's bound."""

from hetcal.planning.bounds import BoundCheck, NllBound, bound_check
from hetcal.planning.class_advice import ClassAdvice
from hetcal.planning.figure import plan_figure
from hetcal.planning.learning_curve import Curve, Interval
from hetcal.planning.plan import Forecast, MethodPlan, ValidationPlan, plan_validation_size
from hetcal.planning.quarter_check import QuarterCheck, QuarterLine, check_quarter

__all__ = [
    "BoundCheck",
    "ClassAdvice",
    "Curve",
    "Forecast",
    "Interval",
    "MethodPlan",
    "NllBound",
    "QuarterCheck",
    "QuarterLine",
    "ValidationPlan",
    "bound_check",
    "check_quarter",
    "plan_figure",
    "plan_validation_size",
]
