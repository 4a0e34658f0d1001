"""Tables of pandas, polars and PyArrow, and labels that are class names, give the results of plain arrays."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hetcal
from hetcal import metrics, planning
from hetcal.compare import compare
from hetcal.partition import bundle_classes

RNG = np.random.default_rng(11)
Z = RNG.normal(size=(240, 3)) * 3
Y = np.where(RNG.random(240) < 0.75, Z.argmax(axis=1), RNG.integers(0, 3, 240))
P = np.exp(Z) / np.exp(Z).sum(axis=1, keepdims=True)
NAMES = ["cat", "dog", "cow"]
TEXTS = np.array(NAMES)[Y]
ORDER = [2, 0, 1]
GROUPS = np.array(["x", "y"])[np.arange(240) % 2]

Table = Callable[[Any, list[str]], Any]
Column = Callable[[Any], Any]


def libraries() -> dict[str, Callable[[], tuple[Table, Column]]]:
    def pandas() -> tuple[Table, Column]:
        pd = pytest.importorskip("pandas")
        return lambda values, names: pd.DataFrame(values, columns=names), pd.Series

    def polars() -> tuple[Table, Column]:
        pl = pytest.importorskip("polars")
        return lambda values, names: pl.DataFrame(values, schema=names), lambda values: pl.Series(values)

    def pyarrow() -> tuple[Table, Column]:
        pa = pytest.importorskip("pyarrow")
        return (
            lambda values, names: pa.table(dict(zip(names, np.transpose(values), strict=True))),
            lambda values: pa.chunked_array([pa.array(values[:9]), pa.array(values[9:])]),
        )

    return {function.__name__: function for function in (pandas, polars, pyarrow)}


LIBRARIES = libraries()


def ts() -> Any:
    return hetcal.TemperatureScaling()


def compare_ts(*rows: Any, **names: Any) -> Any:
    return compare(*rows, methods={"TS": ts()}, **names)["TS"].evaluation.nll


def quarter(z: Any, y: Any, **names: Any) -> Any:
    options: dict[str, Any] = {"share": 0.5, "methods": {"TS": ts()}, "n_repeats": 5}
    return [line.measured for line in planning.check_quarter(z, y, z, y, **options, **names).lines]


def plan(z: Any, y: Any, **names: Any) -> Any:
    return hetcal.plan_validation_size(z, y, methods={"TS": ts()}, n_repeats=5, **names).target


# Functions of logits, labels and class names, with a result to compare
OF_LOGITS: dict[str, Callable[..., Any]] = {
    "fit": lambda z, y, **names: ts().fit(z, y, **names).alpha_,
    "predict_proba": lambda z, y, **names: ts().fit(z, y, **names).predict_proba(z),
    "evaluate logits": lambda z, y, **names: hetcal.evaluate(logits=z, labels=y, **names).nll,
    "diagnose": lambda z, y, **names: [c.accuracy for c in hetcal.diagnose(z, y, **names).classes],
    "compare": compare_ts,
    "compare test": lambda z, y, **names: compare_ts(z, y, z, y, **names),
    "plan": plan,
    "check_quarter": quarter,
    "bound_check": lambda z, y, **names: planning.bound_check(z, y, z, y, **names)[0].excess,
    "bundle_classes": lambda z, y, **names: bundle_classes(z, y, 2, **names),
}
# The same for probabilities
OF_PROBS: dict[str, Callable[..., Any]] = {
    "fit probs": lambda p, y, **names: ts().fit(probs=p, labels=y, **names).alpha_,
    "evaluate": lambda p, y, **names: hetcal.evaluate(p, y, **names).nll,
    "bootstrap": lambda p, y, **names: hetcal.bootstrap(p, y, n_resamples=5, **names).estimate["ece"],
    "gap_intervals": lambda p, y, **names: metrics.gap_intervals(p, y, **names).low["signed_gap"],
    "reliability_curve": lambda p, y, **names: metrics.reliability_curve(p, y, **names).accuracy,
    "reliability_by_class": lambda p, y, **names: [
        curve.accuracy for curve in metrics.reliability_by_class(p, y, **names)
    ],
}
for score in (
    metrics.accuracy, metrics.nll, metrics.brier, metrics.ece, metrics.class_ece, metrics.max_ece,
    metrics.avg_ece, metrics.signed_gap, metrics.debiased_ece, metrics.smooth_ece,
):  # fmt: skip
    OF_PROBS[score.__name__] = score
FUNCTIONS = {name: (call, Z, "{}") for name, call in OF_LOGITS.items()}
FUNCTIONS |= {name: (call, P, "prob_{}") for name, call in OF_PROBS.items()}


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_tables_give_the_results_of_arrays(function: str, library: str) -> None:
    table, column = LIBRARIES[library]()
    call, scores, column_name = FUNCTIONS[function]
    expected, rows = call(scores, Y), table(scores, [column_name.format(name) for name in NAMES])
    for labels in (Y, TEXTS):
        np.testing.assert_allclose(call(rows, column(labels)), expected, rtol=1e-9)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_labels_that_are_class_names(function: str) -> None:
    call, scores, _ = FUNCTIONS[function]
    expected = call(scores, Y)
    np.testing.assert_array_equal(call(scores, TEXTS, class_names=NAMES), expected)
    np.testing.assert_array_equal(call(scores, 10 * Y, class_names=[0, 10, 20]), expected)
    with pytest.raises(TypeError, match=r"labels must be integers 0\.\.2, got .* class_names="):
        call(scores, TEXTS)
    with pytest.raises(ValueError, match="labels must be among class_names"):
        call(scores, TEXTS, class_names=["cat", "dog", "hen"])


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_names_in_another_order_than_the_columns_are_refused(function: str, library: str) -> None:
    table, _ = LIBRARIES[library]()
    call, scores, column_name = FUNCTIONS[function]
    rows = table(scores, [column_name.format(name) for name in NAMES])
    with pytest.raises(ValueError, match="class_names must be in the order of the columns"):
        call(rows, TEXTS, class_names=NAMES[::-1])


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_column_of_labels_among_the_classes_is_refused(function: str) -> None:
    pd = pytest.importorskip("pandas")
    call, scores, column_name = FUNCTIONS[function]
    rows = pd.DataFrame(scores, columns=[column_name.format(name) for name in NAMES]).assign(label=Y)
    with pytest.raises(ValueError, match="must have only the columns of the classes, got also 'label'"):
        call(rows, Y)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    "names",
    [
        ["logit_a", "logit_b", "logit_c", "text"],
        ["logit_a", "logit_b", "logit_c", "prediction", "Target"],
        ["a", "b", "c", "confidence"],
        ["0", "1", "2", "y_true"],
    ],
)
def test_the_remedy_for_other_columns_works(library: str, names: list[str]) -> None:
    table, _ = LIBRARIES[library]()
    rows = table(np.column_stack([Z, *[Y] * (len(names) - 3)]), names)
    with pytest.raises(ValueError, match="must have only the columns of the classes") as refused:
        ts().fit(rows, Y)
    frame_library = "polars" if library == "polars" else "pandas"
    remedy = re.search(rf"(\.drop\([^)]*\)) in {frame_library}", str(refused.value))
    assert remedy is not None
    frame = rows.to_pandas() if library == "pyarrow" else rows
    remedied = eval(f"frame{remedy[1]}", {"frame": frame})  # noqa: S307
    assert ts().fit(remedied, Y).alpha_ == ts().fit(Z, Y).alpha_


def test_a_class_may_have_the_name_of_another_column_if_all_have_a_prefix() -> None:
    pd = pytest.importorskip("pandas")
    model = ts().fit(pd.DataFrame(Z, columns=["logit_y", "logit_target", "logit_confidence"]), Y)
    assert model.class_names_ == ["y", "target", "confidence"]


def test_logits_and_probabilities_in_one_table_are_refused() -> None:
    pd = pytest.importorskip("pandas")
    rows = pd.DataFrame(Z, columns=["logit_a", "logit_b", "logit_c"]).assign(prob_a=P[:, 0])
    with pytest.raises(ValueError, match="got columns of logits and of probabilities"):
        ts().fit(rows, Y)


@pytest.mark.parametrize("library", LIBRARIES)
def test_columns_of_test_rows_are_matched_by_name(library: str) -> None:
    table, column = LIBRARIES[library]()
    methods = {"VS": hetcal.VectorScaling(0.01)}
    expected = compare(Z[:120], Y[:120], Z[120:], Y[120:], methods=methods)["VS"].evaluation.nll
    fitted, names = table(Z[:120], NAMES), [NAMES[k] for k in ORDER]
    test = table(Z[120:, ORDER], names)
    positions = np.argsort(ORDER)[Y[120:]]
    for labels in (column(TEXTS[120:]), column(positions)):
        result = compare(fitted, Y[:120], test, labels, methods=methods)["VS"].evaluation
        assert result.nll == pytest.approx(expected, rel=1e-12)
        assert result.classes.name == tuple(NAMES)
    checks = planning.bound_check(fitted, Y[:120], test, column(TEXTS[120:]))
    assert checks == planning.bound_check(Z[:120], Y[:120], Z[120:], Y[120:])
    with pytest.raises(ValueError, match="test_logits must have the same columns"):
        compare(fitted, Y[:120], table(Z[120:], ["cat", "dog", "hen"]), Y[120:], methods=methods)


@pytest.mark.parametrize("library", LIBRARIES)
def test_other_arguments_may_be_columns(library: str) -> None:
    table, column = LIBRARIES[library]()
    weight = np.linspace(0.5, 1.5, 240)
    options = {"sample_weight": weight, "groups": GROUPS}
    expected = hetcal.ClassWiseTemperatureScaling().fit(Z, Y, **options)
    columns = {name: column(values) for name, values in options.items()}
    model = hetcal.ClassWiseTemperatureScaling().fit(table(Z, NAMES), column(TEXTS), **columns)
    np.testing.assert_array_equal(model.alpha_, expected.alpha_)
    permuted = table(Z[:, ORDER], [NAMES[k] for k in ORDER])
    np.testing.assert_array_equal(
        model.predict_proba(permuted, groups=column(GROUPS)),
        expected.predict_proba(Z, groups=GROUPS)[:, ORDER],
    )
    in_batches = hetcal.Batches([(table(Z[:100], NAMES), TEXTS[:100]), (table(Z[100:], NAMES), TEXTS[100:])])
    assert ts().fit(in_batches).alpha_ == pytest.approx(ts().fit(Z, Y).alpha_)


@pytest.mark.parametrize("library", LIBRARIES)
def test_one_column_of_probabilities(library: str) -> None:
    table, column = LIBRARIES[library]()
    p, y = P[:, 0], (Y == 0).astype(int)
    expected = ts().fit(probs=np.stack([1 - p, p], axis=1), labels=y)
    model = ts().fit(probs=table(p[:, None], ["prob_cat"]), labels=column(np.where(y, "cat", "other")))
    assert model.class_names_ == ["other", "cat"]
    assert model.alpha_ == expected.alpha_
    assert ts().fit(probs=column(p), labels=column(y)).alpha_ == expected.alpha_


@pytest.mark.parametrize("predicted", [Z.argmax(axis=1), np.array(NAMES)[Z.argmax(axis=1)]])
def test_predicted_classes_may_be_names(predicted: Any) -> None:
    confidence = P.max(axis=1)
    options = {"predicted": predicted, "class_names": [*NAMES, "hen"]}
    expected = metrics.class_ece(confidence, Y, predicted=Z.argmax(axis=1))
    np.testing.assert_array_equal(metrics.class_ece(confidence, TEXTS, **options), [*expected, np.nan])
    result = hetcal.evaluate(confidence, TEXTS, **options)
    assert result.nll == hetcal.evaluate(confidence, Y, predicted=Z.argmax(axis=1)).nll
    assert result.classes.name == (*NAMES, "hen")
