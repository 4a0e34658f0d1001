"""Class names: named columns may be in any order, and unknown names are refused."""

from __future__ import annotations

import importlib
import json

import numpy as np
import pytest

import hetcal
from hetcal.__main__ import main

pd = pytest.importorskip("pandas")
pytestmark = pytest.mark.filterwarnings("ignore::hetcal.CalibrationWarning")

NAMES = ["cat", "dog", "emu", "owl"]
ORDER = [2, 0, 3, 1]
CALIBRATORS = [
    hetcal.ClassWiseTemperatureScaling(),
    hetcal.VectorScaling(1e-2),
    hetcal.ClassWise(hetcal.PlattScaling(), "bayes"),
    hetcal.AutoCalibrator(cv=2),
]


@pytest.fixture(scope="module")
def rows(make_sample):
    z, y, _ = make_sample(800, 4, 0, alpha=np.array([0.3, 0.7, 1.2, 2.0]))
    return z, y, pd.DataFrame(z, columns=NAMES)


@pytest.mark.parametrize("cal", CALIBRATORS, ids=repr)
def test_columns_in_another_order(cal, rows):
    z, y, frame = rows
    cal = cal.fit(frame, y)
    assert cal.class_names_ == NAMES
    p = cal.predict_proba(frame)
    np.testing.assert_array_equal(p, cal.predict_proba(z))  # columns of an array are matched by position
    mixed = cal.predict_proba(frame.iloc[:, ORDER])
    np.testing.assert_array_equal(mixed, p[:, ORDER])  # the output has the column order of the input
    np.testing.assert_array_equal(cal.predict_proba(z[:, ORDER], class_names=np.array(NAMES)[ORDER]), mixed)
    prefixed = frame.iloc[:, ORDER].add_prefix("logit_")
    np.testing.assert_array_equal(cal.predict_proba(prefixed), mixed)


def test_standard_errors_follow_the_column_order(rows):
    _, y, frame = rows
    cal = hetcal.ClassWiseTemperatureScaling().fit(frame, y)
    p, error = cal.predict_proba(frame, return_std=True)
    reordered = cal.predict_proba(frame.iloc[:, ORDER], return_std=True)
    np.testing.assert_array_equal(reordered[0], p[:, ORDER])
    np.testing.assert_array_equal(reordered[1], error[:, ORDER])


@pytest.mark.parametrize(
    ("columns", "keyword"),
    [
        (["cat", "dog", "emu", "ant"], "'owl'.*'ant'"),
        (["cat", "dog", "emu"], "'owl'"),
        (["cat", "dog", "emu", "owl", "yak"], "'yak'"),
        (["cat", "dog", "emu", "emu"], "'emu'"),
    ],
)
def test_different_names_are_refused(columns, keyword, rows):
    z, y, frame = rows
    cal = hetcal.TemperatureScaling().fit(frame, y)
    wide = pd.DataFrame(np.resize(z, (10, len(columns))), columns=columns)
    with pytest.raises(ValueError, match=keyword):
        cal.predict_proba(wide)


def test_hostile_names_stay_on_one_line(rows):
    z, y, _ = rows
    hostile = ["a\n\x1b[31m", "b\u202e", "c", "d"]
    cal = hetcal.TemperatureScaling().fit(z, y, class_names=hostile)
    for call in (
        lambda: cal.predict_proba(z, class_names=NAMES),
        lambda: cal.fit(z, np.array(["x\ny"] * len(y)), class_names=hostile),
        lambda: cal.fit(pd.DataFrame(z, columns=hostile), y, class_names=hostile[::-1]),
    ):
        with pytest.raises(ValueError, match=" must ") as caught:
            call()
        assert not set("\n\x1b\u202e") & set(str(caught.value))


def test_labels_by_name(rows):
    z, y, frame = rows
    text = np.array(NAMES)[y]
    by_number = hetcal.VectorScaling(1e-2).fit(z, y)
    np.testing.assert_array_equal(hetcal.VectorScaling(1e-2).fit(frame, text).scale_, by_number.scale_)
    named = hetcal.VectorScaling(1e-2).fit(z, text, class_names=NAMES)
    np.testing.assert_array_equal(named.scale_, by_number.scale_)
    assert hetcal.evaluate(logits=frame, labels=text).accuracy == np.mean(z.argmax(axis=1) == y)
    assert hetcal.diagnose(z, text, class_names=NAMES).worst == hetcal.diagnose(frame, y).worst
    mixed = hetcal.VectorScaling(1e-2).fit(frame.iloc[:, ORDER], text)
    np.testing.assert_allclose(mixed.predict_proba(frame), named.predict_proba(frame), atol=1e-6)


def test_numbered_columns(rows):
    z, y, _ = rows
    ones = pd.DataFrame(z, columns=[1, 2, 3, 4])
    cal = hetcal.VectorScaling(1e-2).fit(ones, y + 1)  # labels are column names
    np.testing.assert_array_equal(cal.scale_, hetcal.VectorScaling(1e-2).fit(z, y).scale_)
    with pytest.raises(ValueError, match=r"labels must .*\(1, 2, 3, 4\), got 0"):
        hetcal.TemperatureScaling().fit(ones, y)
    plain = hetcal.TemperatureScaling().fit(pd.DataFrame(z), y)
    assert plain.class_names_ is None
    mixed = hetcal.VectorScaling(1e-2).fit(pd.DataFrame(z)[ORDER], y)  # 2, 0, 3, 1
    np.testing.assert_allclose(mixed.scale_, cal.scale_[ORDER], rtol=1e-4)


def test_names_and_columns_that_contradict_each_other(rows):
    _, y, frame = rows
    with pytest.raises(ValueError, match="class_names must"):
        hetcal.TemperatureScaling().fit(frame, y, class_names=NAMES[::-1])
    assert hetcal.TemperatureScaling().fit(frame, y, class_names=list("abcd")).class_names_ == list("abcd")


def test_other_libraries(rows):
    z, y, frame = rows
    cal = hetcal.ClassWiseTemperatureScaling().fit(frame, y)
    expected = cal.predict_proba(z)[:, ORDER]
    pl = pytest.importorskip("polars")
    np.testing.assert_array_equal(
        cal.predict_proba(pl.DataFrame(frame.iloc[:, ORDER].to_dict("list"))), expected
    )


def test_class_names_are_saved(rows, tmp_path):
    z, _, frame = rows
    cal = hetcal.ClassWiseTemperatureScaling().fit(frame, rows[1])
    hetcal.save(cal, tmp_path / "c.json")
    loaded = hetcal.load(tmp_path / "c.json")
    assert loaded.class_names_ == NAMES
    np.testing.assert_array_equal(loaded.predict_proba(frame.iloc[:, ORDER]), cal.predict_proba(z)[:, ORDER])


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_commands_apply_and_evaluate(kind, rows, tmp_path, capsys):
    z, y, frame = rows
    text = np.array(NAMES)[y]

    def write(name, table):
        path = tmp_path / f"{name}.{kind}"
        table.to_csv(path) if kind == "csv" else table.to_parquet(path)  # includes the index
        return str(path)

    fit = write("fit", frame[:400].assign(label=text[:400]))
    new = write("new", frame[400:].assign(label=text[400:]))
    mixed = write("mixed", frame[400:].iloc[:, ORDER].assign(label=text[400:]))
    numbers = write("numbers", frame[400:].iloc[:, ORDER].assign(label=y[400:]))
    renamed = write("other", frame[400:].rename(columns={"owl": "ant"}))
    cal = str(tmp_path / "c.json")
    assert main(["fit", fit, "-m", "vs", "-o", cal]) == 0
    expected = hetcal.VectorScaling().fit(z[:400], y[:400]).predict_proba(z[400:])
    for source, order in ((new, [0, 1, 2, 3]), (mixed, ORDER)):
        out = tmp_path / "out.csv"
        assert main(["apply", cal, source, "-o", str(out)]) == 0
        table = pd.read_csv(out)
        assert list(table.columns) == [f"prob_{NAMES[k]}" for k in order]
        np.testing.assert_allclose(table.to_numpy(), expected[:, order], atol=1e-6)
    capsys.readouterr()
    scores = []
    for source in (new, mixed):
        assert main(["evaluate", source, "-c", cal, "--json"]) == 0
        scores.append(json.loads(capsys.readouterr().out)["nll"])
    assert scores[0] == pytest.approx(scores[1])
    assert main(["evaluate", numbers, "-c", cal]) == 2
    assert "must be class names" in capsys.readouterr().err
    assert main(["apply", cal, renamed, "-o", str(tmp_path / "no.csv")]) == 2
    error = capsys.readouterr().err
    assert "'owl'" in error
    assert "'ant'" in error
    assert not (tmp_path / "no.csv").exists()


def test_batches_of_parquet(rows, tmp_path):
    z, y, frame = rows
    frame.assign(label=y).to_parquet(tmp_path / "a.parquet")
    new_index = np.argsort(ORDER)  # position of each class in the reordered columns
    frame.iloc[:, ORDER].assign(label=new_index[y]).to_parquet(tmp_path / "b.parquet")
    cal = hetcal.VectorScaling(1e-2).fit(hetcal.Batches.from_parquet(tmp_path / "a.parquet"))
    assert cal.class_names_ == NAMES
    predictions = cal.predict_proba(hetcal.Batches.from_parquet(tmp_path / "b.parquet"))
    assert hetcal.evaluate(predictions).nll == pytest.approx(hetcal.evaluate(cal.predict_proba(z), y).nll)
    frame.rename(columns={"owl": "ant"}).assign(label=y).to_parquet(tmp_path / "c.parquet")
    with pytest.raises(ValueError, match="'owl'"):
        cal.predict_proba(hetcal.Batches.from_parquet(tmp_path / "c.parquet"))


def test_dask(rows, tmp_path):
    dd = pytest.importorskip("dask.dataframe")
    dask_rows = importlib.import_module("hetcal.dask")
    z, y, frame = rows
    new_index = np.argsort(ORDER)
    named = dask_rows.rows(dd.from_pandas(frame.assign(label=y), npartitions=3), "label")
    mixed = dask_rows.rows(
        dd.from_pandas(frame.iloc[:, ORDER].assign(label=new_index[y]), npartitions=3), "label"
    )
    cal = hetcal.VectorScaling(1e-2).fit(named)
    assert cal.class_names_ == NAMES
    np.testing.assert_allclose(
        cal.predict_proba(mixed).to_dask_array().compute(), cal.predict_proba(z)[:, ORDER], atol=1e-6
    )
    frame.iloc[:, ORDER].assign(label=new_index[y]).to_parquet(tmp_path / "b.parquet")
    read = dask_rows.read_parquet(tmp_path / "b.parquet")
    assert hetcal.evaluate(cal.predict_proba(read)).nll == pytest.approx(
        hetcal.evaluate(cal.predict_proba(z), y).nll, rel=1e-6
    )


def test_classifiers_pass_their_classes_to_the_calibrator(rows):
    from sklearn.linear_model import LogisticRegression

    z, y, frame = rows
    clf = hetcal.CalibratedClassifier(LogisticRegression()).fit(z, np.array(NAMES)[y])
    inner = clf.calibrators_[0]
    assert inner.class_names_ == NAMES
    scores = pd.DataFrame(clf.logits(z), columns=NAMES)
    np.testing.assert_allclose(inner.predict_proba(scores.iloc[:, ORDER]), clf.predict_proba(z)[:, ORDER])
    with pytest.raises(ValueError, match="'cat'"):
        inner.predict_proba(frame.rename(columns={"cat": "kitten"}))


def test_columns_numbered_from_0(rows, tmp_path):
    """Columns 0, 1, 2, … are matched by name if they are in another order."""
    z, y, _ = rows
    frame = pd.DataFrame(z)
    cal = hetcal.ClassWiseTemperatureScaling().fit(frame, y)
    assert cal.class_names_ is None
    expected = cal.predict_proba(z)[:, ORDER]
    np.testing.assert_array_equal(cal.predict_proba(frame[ORDER]), expected)
    mixed = hetcal.ClassWiseTemperatureScaling().fit(frame[ORDER], y)
    np.testing.assert_allclose(mixed.predict_proba(frame), cal.predict_proba(z), rtol=1e-9)
    frame.columns = [f"logit_{k}" for k in range(4)]
    frame[[f"logit_{k}" for k in ORDER]].to_csv(tmp_path / "mixed.csv", index=False)
    frame.assign(label=y).to_csv(tmp_path / "fit.csv", index=False)
    c = str(tmp_path / "c.json")
    assert main(["fit", str(tmp_path / "fit.csv"), "-m", "cts", "-o", c]) == 0
    assert main(["apply", c, str(tmp_path / "mixed.csv"), "-o", str(tmp_path / "out.csv")]) == 0
    np.testing.assert_allclose(pd.read_csv(tmp_path / "out.csv").to_numpy(), expected, atol=1e-6)
    named = pd.DataFrame(z, columns=NAMES)
    # Since fit saw no names, columns are matched by position.
    np.testing.assert_array_equal(cal.predict_proba(named), cal.predict_proba(z))


def test_class_names_that_are_numbers(rows):
    z, y, _ = rows
    expected = hetcal.evaluate(logits=z, labels=y).accuracy
    frame = pd.DataFrame(z, columns=[10, 20, 30, 40])
    label = np.array([10, 20, 30, 40])[y]
    assert hetcal.evaluate(logits=z, labels=label, class_names=[10, 20, 30, 40]).accuracy == expected
    assert hetcal.evaluate(logits=z, labels=y, class_names=["10", "20", "30", "40"]).accuracy == expected
    cal = hetcal.TemperatureScaling().fit(frame[:400], label[:400])
    result = hetcal.evaluate(logits=frame[400:], labels=label[400:], calibrator=cal)
    assert result.accuracy == hetcal.evaluate(logits=z[400:], labels=y[400:]).accuracy
    assert hetcal.diagnose(z, label, class_names=[10, 20, 30, 40]).worst.name in {"10", "20", "30", "40"}


def test_batches_of_frames(rows):
    z, y, frame = rows
    parts = [(frame[:400], y[:400]), (frame[400:], y[400:])]
    cal = hetcal.ClassWiseTemperatureScaling().fit(hetcal.Batches(parts))
    assert cal.class_names_ == NAMES
    new_index = np.argsort(ORDER)
    mixed = hetcal.Batches([(part.iloc[:, ORDER], new_index[labels]) for part, labels in parts])
    probs = np.concatenate([p for p, *_ in cal.predict_proba(mixed)])
    np.testing.assert_allclose(probs, cal.predict_proba(z)[:, ORDER])
    assert hetcal.evaluate(cal.predict_proba(mixed)).worst_class in NAMES
    with pytest.raises(ValueError, match="batch 1: logits must"):
        hetcal.TemperatureScaling().fit(hetcal.Batches([parts[0], (frame[400:].iloc[:, ORDER], y[400:])]))
    with pytest.raises(ValueError, match=r"class_names must .*got 1"):
        hetcal.TemperatureScaling().fit(hetcal.Batches(z, y, class_names=["a"]))


def test_fit_in_batches_keeps_the_names(rows, tmp_path):
    _, y, frame = rows
    frame.assign(label=y, age=1.0).add_prefix("logit_").rename(
        columns={"logit_label": "label", "logit_age": "age"}
    ).to_parquet(tmp_path / "a.parquet", index=False)
    arguments = [
        "fit",
        str(tmp_path / "a.parquet"),
        "-m",
        "cts",
        "--in-batches",
        "-o",
        str(tmp_path / "c.json"),
    ]
    assert main(arguments) == 0
    assert hetcal.load(tmp_path / "c.json").class_names_ == NAMES
    # The column "age" is not a class.
    assert hetcal.Batches.from_parquet(tmp_path / "a.parquet").class_names == NAMES


def test_numbered_columns_mean_the_same_everywhere(rows, tmp_path, monkeypatch):
    """Label k means the column named k in data frames, batches, mapped files, tensors, metrics and plans."""
    from hetcal import metrics
    from hetcal.calibrators import base

    z, y, _ = rows
    frame = pd.DataFrame(z[:, ORDER], columns=ORDER)
    cal = hetcal.ClassWiseTemperatureScaling()
    expected = cal.fit(z, y).predict_proba(z)[:, ORDER]
    np.save(tmp_path / "z.npy", z[:, ORDER])
    mapped = np.load(tmp_path / "z.npy", mmap_mode="r")
    fits = [
        ((frame, y), {}),
        ((frame, y), {"class_names": frame.columns}),
        ((frame, y), {"class_names": [str(k) for k in ORDER]}),
        ((z[:, ORDER], y), {"class_names": ORDER}),
        ((z[:, ORDER], y), {"class_names": pd.Index(ORDER, dtype=object)}),
        ((z[:, ORDER], y), {"class_names": np.array(ORDER, float)}),
        ((hetcal.Batches([(frame[:300], y[:300]), (frame[300:], y[300:])]),), {}),
        ((hetcal.Batches(z[:, ORDER], y, class_names=ORDER),), {}),
        ((mapped, y), {"class_names": ORDER}),
    ]
    monkeypatch.setattr(base, "_LARGE", 1)
    for arguments, options in fits:
        calibrator = hetcal.ClassWiseTemperatureScaling().fit(*arguments, **options)
        np.testing.assert_allclose(calibrator.predict_proba(frame), expected, rtol=1e-6)
    for numbers in (ORDER, np.array(ORDER, dtype=object), np.array(ORDER, float)):
        with pytest.raises(ValueError, match="class_names must"):
            cal.fit(hetcal.Batches(z[:, ORDER], y), class_names=numbers)
    p = hetcal.Identity().fit(z, y).predict_proba(z)
    table = pd.DataFrame(p[:, ORDER], columns=ORDER)
    for name in ("accuracy", "nll", "brier", "ece", "max_ece"):
        score = getattr(metrics, name)
        assert score(table, y) == pytest.approx(score(p, y)), name
    assert hetcal.bootstrap(table, y, n_resamples=5).estimate["ece"] == pytest.approx(metrics.ece(p, y))
    batches = hetcal.Batches([(frame, y)])
    assert hetcal.evaluate(logits=batches).accuracy == metrics.accuracy(p, y)


def test_tensors_with_numbered_or_text_labels(rows, monkeypatch):
    torch = pytest.importorskip("torch")
    from hetcal._numeric import device as tensors
    from hetcal.calibrators import base

    for module in (base, tensors):
        monkeypatch.setattr(module, "on_device", tensors.is_tensor)
    z, y, _ = rows
    tensor = torch.from_numpy(z[:, ORDER].copy())
    expected = hetcal.ClassWiseTemperatureScaling().fit(z, y).alpha_[ORDER]
    by_number = hetcal.ClassWiseTemperatureScaling().fit(tensor, torch.from_numpy(y), class_names=ORDER)
    np.testing.assert_allclose(by_number.alpha_, expected, rtol=1e-5)
    names = [NAMES[k] for k in ORDER]
    by_name = hetcal.ClassWiseTemperatureScaling().fit(tensor, np.array(NAMES)[y], class_names=names)
    np.testing.assert_allclose(by_name.alpha_, expected, rtol=1e-5)


def test_prefixes_of_names_are_ignored(rows):
    z, y, _ = rows
    for names in (
        [f"class_{k}" for k in range(4)],
        [f"class_{k + 1}" for k in range(4)],
        ["logit_a", "logit_b", "logit_c", "logit_d"],
    ):
        frame = pd.DataFrame(z, columns=names)
        mixed = [names[k] for k in ORDER]
        by_frame = hetcal.ClassWiseTemperatureScaling().fit(
            frame, np.array(names)[y] if "class" in names[0] else y
        )
        expected = by_frame.predict_proba(z)[:, ORDER]
        np.testing.assert_array_equal(by_frame.predict_proba(z[:, ORDER], class_names=mixed), expected)
        by_names = hetcal.ClassWiseTemperatureScaling().fit(z, y, class_names=names)
        np.testing.assert_array_equal(by_names.predict_proba(frame[mixed]), expected)


def test_text_labels_in_batches(rows, tmp_path):
    z, y, frame = rows
    frame.assign(label=np.array(NAMES)[y]).to_parquet(tmp_path / "t.parquet", index=False)
    calibrator = hetcal.TemperatureScaling().fit(hetcal.Batches.from_parquet(tmp_path / "t.parquet"))
    assert calibrator.alpha_ == pytest.approx(hetcal.TemperatureScaling().fit(z, y).alpha_)
    partly = pd.DataFrame(z, columns=["1", "cat", "0", "owl"])
    with pytest.raises(ValueError, match=r"labels must .*'1'"):
        hetcal.TemperatureScaling().fit(partly, y)


def test_old_files_load(tmp_path, rows):
    z, y, _ = rows
    body = {
        "type": "TemperatureScaling",
        "params": {"alpha_bounds": {"tuple": [0.01, 100.0]}, "loss": "nll"},
        "state": {"alpha_": 0.5, "alpha_std_": 0.1, "n_features_in_": 4},
    }
    from hetcal import artefact

    content = {"format": "hetcal.calibrator", "schema": 1, "hetcal": "0.1.0"}
    content |= {"checksum": artefact._checksum(body), "calibrator": body}
    (tmp_path / "old.json").write_text(json.dumps(content))
    cal = hetcal.load(tmp_path / "old.json")
    assert cal.class_names_ is None
    np.testing.assert_allclose(cal.predict_proba(z), hetcal.Identity().fit(z, y).predict_proba(z / 2))
    zero = cal.predict_proba(probs=[[0.0, 0.5, 0.25, 0.25]])  # the floor of that version
    np.testing.assert_allclose(zero, cal.predict_proba(np.log([[1e-6, 0.5, 0.25, 0.25]])))
