"""Words of the CLINC150 page; the numbers in braces are filled in from the table of results."""

from __future__ import annotations

__all__ = ["FIGURES", "HEAD", "LOGISTIC", "MENDED", "READING", "RULES", "STOPPING", "WRONG"]

HEAD = """# Text: 150 intents, noisy labels and few samples

<!-- Written by examples/clinc150.py from results/clinc150.csv; do not edit by hand. -->

The paper shows its two effects on images. Here they are on real text: CLINC150 (Larson et al. 2019, CC BY
3.0), short requests with 150 intents. Two models read words weighted by TF-IDF: a small network (word
vectors, two hidden layers, 30 epochs), which can be over-confident as the paper's are, and logistic
regression, which the penalty on its weights holds back.

```
python examples/clinc150.py --data DIR              # one seed of the network, about a minute on two cores
python examples/clinc150.py --data DIR --seeds 5 --models network,logistic --output .          # this page
```

`DIR`, or `HETCAL_DATA`, holds `clinc150/` with the three published variants: *full* (100 training rows of
every intent), *small* (50) and *imbalanced* (25, 50, 75 or 100). Out-of-scope rows are left out.
"""

RULES = (
    """**Noise**: 30% of the training labels of every second intent are redrawn at random. **Few**: 10% of
    the training rows of every second intent are kept. These intents are called *affected*; in the
    imbalanced variant as it is, those with 25 or 50 rows are.""",
    """Only training rows are spoilt. As in the paper, the epoch with the best validation accuracy stands;
    for logistic regression the best of seven C from 1 to 1,000.""",
    """Calibrators are fitted on the clean `val`, 20 rows of every intent, and judged on `test`, 30 rows of
    every intent. *CTS, bundles* has ten temperatures for ten bundles of intents with like gaps; *VS, ridge*
    has a penalty of 0.001.""",
    """{seeds} Logistic regression on rows as they are has nothing random in it and runs once.""",
    """In brackets the noise floor: what a perfectly calibrated model with the same confidences would score
    by chance. With 30 test rows an intent that of max-ECE is large; what counts is the distance to it.""",
)

READING = """Confidence − accuracy in points before calibration; above zero is over-confident. *True*: the
test rows that are of these intents, as in the paper's figures. *Predicted*: the rows that the model gives to
these intents, which is all that a calibrator can see."""

WRONG = (
    """**Noise makes the model under-confident**, most of all where the labels are noisy: the {model} is at
    {noise_raw_gap_true_affected} points on the noisy half and {noise_raw_gap_true_rest} on the
    clean half.""",
    """**Few samples make it over-confident, seen by true intent**: {few_raw_gap_true_affected} points where
    rows are few, {few_raw_gap_true_rest} elsewhere. **Seen by predicted intent the sides change**:
    {few_raw_gap_predicted_affected} on what is given to the intents with few rows and
    {few_raw_gap_predicted_rest} on the rest. The model names an intent that it has hardly seen too seldom,
    and is then mostly right ({few_raw_accuracy_predicted_affected}%); the other rows of that intent go to its
    neighbours and spoil their accuracy ({few_raw_accuracy_predicted_rest}%).""",
    """**Milder shortages do not show it.** In the imbalanced variant as it is the small intents are at
    {imbalanced_none_raw_gap_true_affected} points and the large ones at
    {imbalanced_none_raw_gap_true_rest}; the ECE of the small variant as it is is {small_none_raw_ece}, that
    of the full one {none_raw_ece}.""",
)
STOPPING = (
    """**The choice of the epoch matters.** With noise it is epoch {noise_raw_choice} of 30 on average. At the
    last epoch the noise is learned by heart: accuracy falls from {noise_raw_accuracy} to
    {noise_last_accuracy}%, and the noisy half is over-confident by {noise_last_gap_true_affected} points.""",
)
LOGISTIC = (
    """**Logistic regression** is under-confident nearly everywhere, with noise most of all:
    {log_noise_raw_gap_true_affected} points on the noisy half, {log_noise_raw_gap_true_rest} on the clean
    half. Where rows are few, validation accuracy picks a weak penalty (C = {log_few_raw_choice} on
    average); the intents with few rows are then at {log_few_raw_gap_true_affected} points and the others
    at {log_few_raw_gap_true_rest}. With the weakest penalty, C = 1,000, noise leaves
    {log_noise_last_gap_true_affected} points on the noisy half at an accuracy of
    {log_noise_last_accuracy}% in place of {log_noise_raw_accuracy}%.""",
)

FIGURES = """![Confidence minus accuracy of affected intents and of the rest](images/clinc150-gaps.svg)

*The {model}, mean and standard deviation. A calibrator that is right for both has both points at zero.*

![NLL, and max-ECE above its noise floor, by method](images/clinc150-methods.svg)
"""

MENDED = (
    """**One temperature leaves the two sides apart**: with noise {noise_ts_gap_predicted_affected} and
    {noise_ts_gap_predicted_rest} points by predicted intent, with few rows
    {few_ts_gap_predicted_affected} and {few_ts_gap_predicted_rest}, worse than before on the first. The ECE
    of all rows ({noise_ts_ece} and {few_ts_ece}) shows little of it.""",
    """**CTS with a chosen Γ brings them nearer**: {noise_cv_gap_predicted_affected} and
    {noise_cv_gap_predicted_rest} with noise, {few_cv_gap_predicted_affected} and
    {few_cv_gap_predicted_rest} with few rows ("cv"). NLL falls from {noise_ts_nll} to {noise_cv_nll} ("cv")
    and {noise_bayes_nll} ("bayes"), and from {few_ts_nll} to {few_cv_nll} and {few_bayes_nll}; Avg-ECE with
    few rows from {few_ts_avg_ece} (floor {few_ts_avg_ece_floor}) to {few_cv_avg_ece}
    ({few_cv_avg_ece_floor}).""",
    """**Γ = inf asks too much of 20 rows.** On average {noise_inf_at_bound} of the 150 intents (noise)
    and {few_inf_at_bound} (few) are never wrong on their validation rows; their α stops at the bound of
    100, and each mistake on a test row costs dearly: NLL {noise_inf_nll} and {few_inf_nll}, far above TS.
    The two sides are nearer to zero than with TS nevertheless ({noise_inf_gap_predicted_affected} and
    {noise_inf_gap_predicted_rest} with noise).""",
    """**Where nothing is spoilt CTS gains nothing**: NLL {none_ts_nll} (TS), {none_cv_nll} ("cv"),
    {none_bayes_nll} ("bayes"), {none_inf_nll} (Γ = inf). "bayes" is then a little under-confident: ECE
    {none_bayes_ece}, with {none_cv_ece} for "cv" and a floor of {none_bayes_ece_floor}.""",
    """**Bundles do as well as any Γ**: ten temperatures give NLL {noise_bundles_nll} and
    {few_bundles_nll}, and leave {noise_bundles_gap_predicted_affected} and
    {noise_bundles_gap_predicted_rest} points with noise. Where nothing is spoilt they cost something: NLL
    {none_bundles_nll}.""",
    """**Vector scaling** overfits without a penalty (NLL {noise_vs_nll} and {few_vs_nll}). With one it
    has the best NLL of all ({noise_ridge_nll} and {few_ridge_nll}) and, where rows are few, raises
    accuracy from {few_raw_accuracy} to {few_ridge_accuracy}%: it may change decisions, and changes
    {few_ridge_changed}% of them.""",
    """**By true intent no class-wise method is right where rows are few**: TS has
    {few_ts_gap_true_affected} and {few_ts_gap_true_rest} points there, CTS "cv" {few_cv_gap_true_affected}
    and {few_cv_gap_true_rest}. What the model gave to a neighbour has the neighbour's temperature.""",
    """**max-ECE cannot tell the calibrated methods apart here**: with noise it stands
    {noise_raw_max_ece_excess} points above its floor before, {noise_ts_max_ece_excess} after TS,
    {noise_cv_max_ece_excess} after CTS "cv", with a standard deviation over the seeds
    of {noise_cv_max_ece_std}.""",
    """**`AutoCalibrator`**, a mean of several calibrators that changes no decision, has NLL {noise_auto_nll}
    with noise, {few_auto_nll} where rows are few and {none_auto_nll} where nothing is spoilt.""",
)
