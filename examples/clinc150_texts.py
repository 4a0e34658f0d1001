"""Text of the CLINC150 page. The numbers in braces are filled in from the results."""

from __future__ import annotations

__all__ = ["CORRECTIONS", "EFFECTS", "EPOCHS", "FIGURES", "HEAD", "LOGISTIC", "READING", "SETUP"]

HEAD = """# Text: 150 intents, noisy labels and few samples

<!-- Written by examples/clinc150.py from results/clinc150.csv; do not edit by hand. -->

The paper that hetcal implements ([theory](theory.md)) predicts that noisy training labels make a classifier
under-confident, and that few training samples make it over-confident. This example shows both effects on real
text, and how well the calibrators correct them. The data set is CLINC150 (Larson et al. 2019, CC BY 3.0),
which contains short requests with 150 intents.

We train two models on TF-IDF features. The first is a small network with word vectors and two hidden layers,
trained for 30 epochs; like the paper's networks, it can become over-confident. The second is logistic
regression, whose penalty usually prevents this.

```
python examples/clinc150.py --data DIR              # one seed of the network, about a minute on two cores
python examples/clinc150.py --data DIR --seeds 5 --models network,logistic --output .          # this page
```

`DIR`, or the folder that the environment variable `HETCAL_DATA` names, must contain `clinc150/` with the
three published variants of the data set: *full* (100 training rows per intent), *small* (50) and
*imbalanced* (25, 50, 75 or 100). The out-of-scope rows of the data set are not used.

## Setup
"""

SETUP = (
    """**Corruption**: *noise* means that 30% of the training labels of every second intent are replaced by
    random labels. *Few* means that only 10% of the training rows of every second intent are kept. These
    intents are called *affected*, and the others the *rest*. We also train on *unmodified* rows. In the
    unmodified imbalanced variant, the affected intents are those with 25 or 50 rows. In the other
    unmodified variants, no intent is affected. For comparison, their tables show every second intent as
    *affected*, as with noise.""",
    """**Model selection**: as in the paper, we use the epoch with the best validation accuracy. For
    logistic regression, we use the best of seven values of C from 1 to 1,000. Validation and test rows
    are never corrupted.""",
    """**Calibration**: calibrators are fitted on the clean `val` split (20 rows per intent) and evaluated
    on the `test` split (30 rows per intent). *Uncal* is the uncalibrated model, *TS* is one
    temperature, *CTS* is one temperature per predicted intent, *VS* is vector scaling, and *Auto* is
    `AutoCalibrator`, a mixture of calibrators. [Γ](gamma.md) limits how much the temperatures of CTS may
    differ: Γ = inf is no limit,
    *cv* chooses Γ by cross-validation, and *bayes* shrinks the temperatures towards their mean instead. *CTS,
    bundles* has ten temperatures for ten bundles of intents with similar gaps (confidence − accuracy). *VS,
    ridge* has a penalty of 0.001.""",
    """**Repetitions**: {seeds} Logistic regression on unmodified rows is deterministic and runs once.""",
    """**Metrics**: NLL is the negative log-likelihood. ECE is the expected calibration error of all rows;
    max-ECE and Avg-ECE are its maximum and its mean over the predicted intents.""",
    """**[Noise floors](noise-floors.md)** are in parentheses: the average score of a perfectly calibrated
    model with the same confidences. With 30 test rows per intent, the floor of max-ECE is large, so look
    at the difference from the floor.""",
)

READING = """This table shows the *gap*, confidence − accuracy, in points before calibration. A positive gap
means over-confidence. *True* selects test rows by their true intent, as in the paper's figures. *Predicted*
selects them by the predicted intent, which is all that a calibrator knows. The text below the table is about
the full variant unless it names another one."""

EFFECTS = (
    """**Noise makes the model under-confident**, most of all on the noisy intents: the gap of the {model}
    is {noise_raw_gap_true_affected} points on the noisy half and {noise_raw_gap_true_rest} on the clean
    half.""",
    """**Few samples make the model over-confident by true intent**: the gap is {few_raw_gap_true_affected}
    points on the intents with few rows and {few_raw_gap_true_rest} on the others. **By predicted intent,
    the picture is reversed**: {few_raw_gap_predicted_affected} on the intents with few rows and
    {few_raw_gap_predicted_rest} on the others. The model rarely predicts an intent that it has hardly
    seen, and if it does, it is mostly right ({few_raw_accuracy_predicted_affected}%). It assigns the
    other rows of such an intent to similar intents, which lowers the accuracy of the predictions of those
    intents ({few_raw_accuracy_predicted_rest}%).""",
    """**Milder shortages have no visible effect.** In the unmodified imbalanced variant, the gap is
    {imbalanced_none_raw_gap_true_affected} points on the small intents and
    {imbalanced_none_raw_gap_true_rest} on the large ones. The ECE is {small_none_raw_ece} in the
    unmodified small variant and {none_raw_ece} in the full one.""",
)
EPOCHS = (
    """**The choice of the epoch matters.** With noise, epoch {noise_raw_choice} of 30 is selected on
    average. By the last epoch, the model has memorised the noise: accuracy falls from
    {noise_raw_accuracy} to {noise_last_accuracy}%, and the gap on the noisy half becomes
    {noise_last_gap_true_affected} points.""",
)
LOGISTIC = (
    """**Logistic regression** is under-confident in nearly all cases, most of all with noise:
    {log_noise_raw_gap_true_affected} points on the noisy half and {log_noise_raw_gap_true_rest} on the
    clean half. With few rows, a weak penalty has the best validation accuracy (C =
    {log_few_raw_choice} on average; the larger C, the weaker the penalty). The gap is then
    {log_few_raw_gap_true_affected} points on the intents with few rows and {log_few_raw_gap_true_rest} on
    the others. With noise and the weakest penalty, C = 1,000, the gap on the noisy half is
    {log_noise_last_gap_true_affected} points, and the accuracy is {log_noise_last_accuracy}% instead of
    {log_noise_raw_accuracy}%.""",
)

FIGURES = """![Confidence minus accuracy of affected and other intents](images/clinc150-gaps.svg)

*Gaps of the affected and of the other intents: mean and standard deviation over the seeds, for the {model}
and the full variant. A perfect calibrator has both points at zero.*

![NLL, and max-ECE above its noise floor, by method](images/clinc150-methods.svg)
"""

CORRECTIONS = (
    """**One temperature does not correct both halves.** With noise, the gaps by predicted intent are
    {noise_ts_gap_predicted_affected} points on the affected intents and {noise_ts_gap_predicted_rest} on
    the others. With few rows, they are
    {few_ts_gap_predicted_affected} and {few_ts_gap_predicted_rest}, so the affected half is worse than
    before calibration. The ECE of all rows ({noise_ts_ece} with noise and {few_ts_ece} with few rows) hides
    most of this.""",
    """**CTS with an automatic Γ brings the halves closer together.** With "cv", the gaps are
    {noise_cv_gap_predicted_affected} and {noise_cv_gap_predicted_rest} with noise, and
    {few_cv_gap_predicted_affected} and {few_cv_gap_predicted_rest} with few rows. With noise, the NLL is
    {noise_cv_nll} ("cv") and {noise_bayes_nll} ("bayes") instead of {noise_ts_nll} (TS); with few rows, it
    is {few_cv_nll} and {few_bayes_nll} instead of {few_ts_nll}. With few rows, Avg-ECE is {few_cv_avg_ece}
    with "cv" (floor {few_cv_avg_ece_floor}) instead of {few_ts_avg_ece} with TS (floor
    {few_ts_avg_ece_floor}).""",
    """**20 rows per intent are too few for Γ = inf.** α is the inverse temperature of an intent, which
    multiplies the logits. On average, the α of {noise_inf_at_bound} of the 150 intents (noise) and
    {few_inf_at_bound} (few) is at a bound, usually 100, because all validation rows that are predicted as
    the intent are correct. Every error on a test row then costs much: the NLL is
    {noise_inf_nll}
    with noise and {few_inf_nll} with few rows, far above TS. The gaps are nevertheless closer to zero
    than with TS ({noise_inf_gap_predicted_affected} and {noise_inf_gap_predicted_rest} with noise).""",
    """**Without corruption, CTS gains nothing**: the NLL is {none_ts_nll} (TS), {none_cv_nll} ("cv"),
    {none_bayes_nll} ("bayes") and {none_inf_nll} (Γ = inf). "bayes" is then slightly under-confident: its
    ECE is {none_bayes_ece}, compared with {none_cv_ece} for "cv" and a floor of
    {none_bayes_ece_floor}.""",
    """**Bundles are about as good as the best Γ.** Ten temperatures give an NLL of {noise_bundles_nll} with
    noise and {few_bundles_nll} with few rows, and gaps of {noise_bundles_gap_predicted_affected} and
    {noise_bundles_gap_predicted_rest} points with noise. Without corruption they have a cost: the NLL is
    {none_bundles_nll}.""",
    """**Vector scaling** overfits without a penalty (NLL {noise_vs_nll} with noise, {few_vs_nll} with few
    rows). With a penalty, it has the lowest NLL of all methods ({noise_ridge_nll} and {few_ridge_nll}).
    With few rows, it raises the accuracy from {few_raw_accuracy} to {few_ridge_accuracy}%, because it changes
    {few_ridge_changed}% of the predictions.""",
    """**With few rows, class-wise temperatures do not correct the gaps by true intent**: the gaps are
    {few_ts_gap_true_affected} and {few_ts_gap_true_rest} points with TS, and {few_cv_gap_true_affected}
    and {few_cv_gap_true_rest} with CTS "cv". A row that the model assigns to the wrong intent also gets
    the temperature of the wrong intent.""",
    """**max-ECE cannot distinguish the calibrated methods here.** With noise, it exceeds its floor by
    {noise_raw_max_ece_excess} points before calibration, {noise_ts_max_ece_excess} after TS and
    {noise_cv_max_ece_excess} after CTS "cv". The standard deviation over the seeds, {noise_cv_max_ece_std}
    points for CTS "cv", is larger than the difference between TS and CTS "cv".""",
    """**`AutoCalibrator`** changes no prediction and has an NLL of
    {noise_auto_nll} with noise, {few_auto_nll} with few rows and {none_auto_nll} without corruption.""",
)
