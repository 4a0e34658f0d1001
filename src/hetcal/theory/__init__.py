"""Theory of calibration by class: distributions, closed forms, bounds and numerical checks.

The theory is that of Zhao, Chen and Oymak, *On the Role of Dataset Quality and Heterogeneity in Model
Confidence*.
"""

from hetcal.theory.bounds import (
    BoundTerms,
    classwise_bound,
    classwise_bound_terms,
    classwise_confidence,
    cts_bound,
    cts_bound_terms,
    samples_needed,
)
from hetcal.theory.checks import (
    BoundLine,
    Check,
    LemmaCurve,
    Slack,
    bound_curve,
    bound_slack,
    lemma_curve,
    theory_checks,
)
from hetcal.theory.noisy_binary import NoisyBinary, NoisyDraws, NoisyFit
from hetcal.theory.rare_feature import EventRates, Promise, RareFeature, RareFit

__all__ = [
    "BoundLine",
    "BoundTerms",
    "Check",
    "EventRates",
    "LemmaCurve",
    "NoisyBinary",
    "NoisyDraws",
    "NoisyFit",
    "Promise",
    "RareFeature",
    "RareFit",
    "Slack",
    "bound_curve",
    "bound_slack",
    "classwise_bound",
    "classwise_bound_terms",
    "classwise_confidence",
    "cts_bound",
    "cts_bound_terms",
    "lemma_curve",
    "samples_needed",
    "theory_checks",
]
