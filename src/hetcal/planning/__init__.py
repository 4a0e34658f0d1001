"""How many validation rows are enough, for every method and class, and how loose the theory's answer is."""

from hetcal.planning.advice import ClassAdvice
from hetcal.planning.bound import BoundCheck, NllBound, bound_check
from hetcal.planning.check import QuarterCheck, QuarterLine, check_quarter
from hetcal.planning.curve import Curve, Interval
from hetcal.planning.figure import plan_figure
from hetcal.planning.plan import Forecast, MethodPlan, ValidationPlan, plan_validation_size

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
