"""`hetcal evaluate`, `diagnose`, `fit` and `apply`."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hetcal
from hetcal.compare import METHODS

SHARED = ("identity", "isotonic", "histogram", "vs", "ms", "classwise-platt", "auto")


def test_evaluate_prints_the_metrics(run: Any, run_json: Any, sample: Any) -> None:
    result = run_json("evaluate", sample.path, "--bins", 10)
    probs = hetcal.Identity().fit(sample.logits, sample.labels).predict_proba(sample.logits)
    assert result["ece"] == pytest.approx(hetcal.metrics.ece(probs, sample.labels, n_bins=10))
    code, out, _ = run("evaluate", sample.path)
    assert code == 0
    assert "max_ece" in out


def test_diagnose_uses_names_and_counts(run: Any, run_json: Any, sample: Any, tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("cat\ndog\n[red]cow\n", encoding="utf-8")
    (tmp_path / "counts.csv").write_text("class,count\ncat,10\ndog,500\ncow,500\n", encoding="utf-8")
    options = ("--classes", tmp_path / "names.txt", "--train-counts", tmp_path / "counts.csv")
    result = run_json("diagnose", sample.path, *options)
    assert [c["name"] for c in result["classes"]] == ["cat", "dog", "[red]cow"]
    code, out, _ = run("diagnose", sample.path, *options)
    assert code == 0
    assert "[red]cow" in out  # not interpreted as markup


@pytest.mark.parametrize("method", SHARED)
def test_fit_apply_evaluate(run: Any, run_json: Any, sample: Any, tmp_path: Path, method: str) -> None:
    calibrator = tmp_path / "cal.json"
    assert run_json("fit", sample.path, "--method", method, "-o", calibrator)["rows"] == 200
    code, out, _ = run("apply", calibrator, sample.path, "-o", tmp_path / "probs.npz")
    assert code == 0
    assert "200 rows" in out
    expected = hetcal.load(calibrator).predict_proba(sample.logits)
    with np.load(tmp_path / "probs.npz") as saved:
        np.testing.assert_array_equal(saved["test_probs"], expected)
    result = run_json("evaluate", sample.path, "--calibrator", calibrator)
    assert result["nll"] == pytest.approx(hetcal.metrics.nll(expected, sample.labels))


def test_label_noise_reaches_the_metrics(run: Any, run_json: Any, sample: Any, tmp_path: Path) -> None:
    matrix = [[0.8, 0.1, 0.1], [0.2, 0.8, 0.0], [0.0, 0.0, 1.0]]
    path = tmp_path / "transition.csv"
    path.write_text("\n".join(",".join(map(str, row)) for row in matrix), encoding="utf-8")
    cases = ((("--noise-rate", "0.1"), 0.1), (("--noise-rate", "0.1,0,0.2"), [0.1, 0, 0.2]))
    for options, transition in (*cases, (("--transition", path), matrix)):
        expected = hetcal.evaluate(logits=sample.logits, labels=sample.labels, transition=transition)
        result = run_json("evaluate", sample.path, *options)
        assert (result["ece"], result["labels"]) == (pytest.approx(expected.ece), "noisy")
        diagnosis = hetcal.diagnose(sample.logits, sample.labels, transition=transition)
        gaps = [c["signed_gap"] for c in run_json("diagnose", sample.path, *options)["classes"]]
        assert gaps == pytest.approx([c.signed_gap for c in diagnosis.classes])
    code, out, _ = run("diagnose", sample.path, "--noise-rate", "0.1")
    assert code == 0
    assert diagnosis.labels.note in out.splitlines()[0]


def test_a_byte_order_mark_is_not_part_of_a_matrix(run: Any, sample: Any, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("0.8,0.1,0.1\n0,1,0\n0,0,1\n", "utf-8-sig")
    assert run("evaluate", sample.path, "--transition", tmp_path / "t.csv")[0] == 0
    np.save(tmp_path / "t.npy", np.eye(3))
    code, _, err = run("evaluate", sample.path, "--transition", tmp_path / "t.npy")
    assert (code, "--transition must be a text file in UTF-8" in err) == (2, True)


def test_label_noise_reaches_the_fit(run: Any, sample: Any, tmp_path: Path) -> None:
    path = tmp_path / "cal.json"
    assert run("fit", sample.path, "-m", "ts", "--noise-rate", "0.01", "-o", path)[0] == 0
    val = hetcal.load_logits(sample.path).val
    expected = hetcal.TemperatureScaling().fit(val.logits, val.labels, transition=0.01)
    np.testing.assert_allclose(
        hetcal.load(path).predict_proba(sample.logits), expected.predict_proba(sample.logits)
    )
    code, _, err = run("fit", sample.path, "--noise-rate", "0.1", "--in-batches", "-o", path)
    assert code == 2
    assert "--in-batches must be left out" in err


@pytest.mark.parametrize(
    ("options", "text", "message"),
    [
        (("--noise-rate", "x"), "", "--noise-rate must be a number, .*got 'x'"),
        (("--noise-rate", "1.5"), "", "--noise-rate must be at least 0 and less than 1, got '1.5'"),
        (("--noise-rate", "0.1,0.2"), "", r"transition must have shape \(3, 3\), or \(3,\)"),
        (
            ("--transition", "t.csv"),
            "0.9,0.1\n0.2",
            "--transition must contain a square matrix, got 1 numbers in line 2",
        ),
        (("--transition", "t.csv"), "0.9,a\n0,1", "--transition must contain numbers.*got '0.9,a'"),
        (("--transition", "t.csv"), "", "--transition must contain a square matrix"),
        (("--transition", "t.csv"), "1,0\n0,1", r"transition must have shape \(3, 3\)"),
        (("--transition", "t.csv", "--noise-rate", "0.1"), "1", "--noise-rate must be left out"),
    ],
)
def test_label_noise_is_validated(
    run: Any, sample: Any, tmp_path: Path, options: tuple[str, ...], text: str, message: str
) -> None:
    (tmp_path / "t.csv").write_text(text, encoding="utf-8")
    words = [tmp_path / word if word == "t.csv" else word for word in options]
    code, _, err = run("diagnose", sample.path, *words)
    assert code == 2
    assert re.search(message, err)


def test_the_help_names_all_methods(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    code, out, _ = run("fit", "--help")
    assert code == 0
    assert f"One of: {', '.join(METHODS)} " in out


def test_fit_auto_shows_the_weights(run: Any, run_json: Any, sample: Any, tmp_path: Path) -> None:
    calibrator = tmp_path / "cal.json"
    result = run_json("fit", sample.path, "-o", calibrator)
    weights = {c["name"]: c["weight"] for c in result["candidates"]}
    assert sum(weights.values()) == pytest.approx(1)
    assert result["chosen"] == hetcal.load(calibrator).best_name_
    code, out, _ = run("fit", sample.path, "-o", calibrator)
    assert code == 0
    lines = [[cell.strip() for cell in line.split("│")] for line in out.splitlines()]
    table = {cells[1]: cells[4] for cells in lines if len(cells) == 6}
    assert table == {k: f"{w:.0%}" if w >= 0.005 else "<1%" if w else "–" for k, w in weights.items()}
    assert "class-wise Platt scaling" in out


@pytest.fixture
def biased(tmp_path: Path) -> Path:
    """A file whose logits are too large for some classes, so that decisions are wrong."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(600, 3)) * 2
    labels = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    path = tmp_path / "biased.npz"
    np.savez(path, logits=z + np.array([0.0, 1.5, 3.0]), labels=labels)
    return path


def test_fit_auto_advises_to_change_decisions(run: Any, run_json: Any, biased: Path, tmp_path: Path) -> None:
    calibrator = tmp_path / "cal.json"
    result = run_json("fit", biased, "-o", calibrator)
    assert result["decision_cost"] == hetcal.load(calibrator).decision_cost_
    assert result["decision_cost"]["is_large"]
    code, out, _ = run("fit", biased, "-o", calibrator)
    assert code == 0
    assert result["advice"] in out
    assert f"{result['decision_cost']['changed']:.1%}" in result["advice"]
    assert "--change-decisions" in result["advice"]
    assert "keep_decision" not in out
    # The advice can be followed.
    free = run_json("fit", biased, "--change-decisions", "-o", calibrator)
    assert free["advice"] is None
    assert not hetcal.load(calibrator).preserves_decision
    assert min(c["nll"] for c in free["candidates"]) < result["decision_cost"]["nll"]


def test_fit_auto_gives_no_advice_without_need(run: Any, run_json: Any, sample: Any, tmp_path: Path) -> None:
    result = run_json("fit", sample.path, "-o", tmp_path / "cal.json")
    assert result["advice"] is None
    assert result["decision_cost"]["is_large"] is False
    _, out, _ = run("fit", sample.path, "-o", tmp_path / "cal.json")
    assert "--change-decisions" not in out


def test_only_auto_can_be_told_to_change_decisions(run: Any, sample: Any, tmp_path: Path) -> None:
    code, _, err = run("fit", sample.path, "-m", "vs", "--change-decisions", "-o", tmp_path / "cal.json")
    assert code == 2
    assert "--method auto" in err


def test_binary_scaling_needs_two_classes(
    run: Any, run_json: Any, sample: Any, tmp_path: Path, rows: Any
) -> None:
    code, _, err = run("fit", sample.path, "-m", "binary", "-o", tmp_path / "cal.json")
    assert code == 2
    assert "2 classes, got 3" in err
    logits, labels = rows
    np.savez(tmp_path / "two.npz", logits=logits[:, :2], labels=labels % 2)
    assert run_json("fit", tmp_path / "two.npz", "-m", "binary", "-o", tmp_path / "cal.json")["classes"] == 2


@pytest.mark.parametrize(("gamma", "expected"), [("0", 0.0), ("0.3", 0.3), ("inf", np.inf)])
def test_gamma_reaches_the_calibrator(
    run_json: Any, sample: Any, tmp_path: Path, gamma: str, expected: float
) -> None:
    run_json("fit", sample.path, "-m", "cts", "--gamma", gamma, "-o", tmp_path / "cal.json")
    assert hetcal.load(tmp_path / "cal.json").gamma_ == expected


@pytest.mark.filterwarnings("default::hetcal.CalibrationWarning")
def test_fit_by_group(run: Any, run_json: Any, rows: Any, tmp_path: Path) -> None:
    logits, labels = rows
    path, calibrator = tmp_path / "g.npz", tmp_path / "cal.json"
    np.savez(path, logits=logits, labels=labels, groups=np.array(["a", "b"] * 200))
    run_json("fit", path, "-m", "cts", "--by-group", "-o", calibrator)
    assert list(hetcal.load(calibrator).groups_) == ["a", "b"]
    assert run("apply", calibrator, path, "-o", tmp_path / "p.csv")[0] == 0
    code, _, err = run("evaluate", path, "-c", calibrator, "--json")
    assert code == 0
    assert err.startswith("hetcal: warning: ")  # these rows were used for the fit
    np.savez(path, logits=logits, labels=labels)
    code, _, err = run("evaluate", path, "-c", calibrator)
    assert code == 2
    assert "group" in err


def test_columns_in_another_order_need_labels_by_name(run: Any, rows: Any, tmp_path: Path) -> None:
    logits, labels = rows

    def write(order: list[int], names: bool) -> Path:
        header = ",".join("abc"[j] for j in order) + ",label"
        lines = [
            f"{','.join(map(str, z[order]))},{'abc'[y] if names else y}"
            for z, y in zip(logits, labels, strict=True)
        ]
        path = tmp_path / f"{names}.csv"
        path.write_text("\n".join([header, *lines]), encoding="utf-8")
        return path

    calibrator = tmp_path / "cal.json"
    assert run("fit", write([0, 1, 2], True), "-m", "ts", "-o", calibrator)[0] == 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hetcal.CalibrationWarning)
        assert run("evaluate", write([2, 0, 1], True), "-c", calibrator)[0] == 0
    code, _, err = run("evaluate", write([2, 0, 1], False), "-c", calibrator)
    assert code == 2
    assert "label" in err


def test_probabilities_pass_through_all_commands(run: Any, rows: Any, tmp_path: Path) -> None:
    logits, labels = rows
    probs = hetcal.Identity().fit(logits, labels).predict_proba(logits)
    lines = [
        f"{i},{','.join(map(str, p))},{'abc'[y]}" for i, (p, y) in enumerate(zip(probs, labels, strict=True))
    ]
    path, calibrator = tmp_path / "p.csv", tmp_path / "cal.json"
    path.write_text("\n".join(["id,prob_a,prob_b,prob_c,label", *lines]), encoding="utf-8")
    assert run("fit", path, "-m", "ts", "-o", calibrator)[0] == 0
    expected = hetcal.TemperatureScaling().fit(logits, labels)
    assert hetcal.load(calibrator).alpha_ == pytest.approx(expected.alpha_, rel=1e-3)
    assert run("apply", calibrator, path, "-o", tmp_path / "out.csv")[0] == 0
    header, first = (tmp_path / "out.csv").read_text(encoding="utf-8").splitlines()[:2]
    assert header == "prob_a,prob_b,prob_c"
    assert sum(map(float, first.split(","))) == pytest.approx(1)


def test_a_csv_file_cannot_hold_two_sets(run: Any, sample: Any, tmp_path: Path) -> None:
    run("fit", sample.path, "-m", "ts", "-o", tmp_path / "cal.json")
    code, _, err = run("apply", tmp_path / "cal.json", sample.path, "-o", tmp_path / "p.csv")
    assert code == 2
    assert ".npz" in err


def test_fit_in_batches(run_json: Any, make_sample: Any, tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    z, y, _ = make_sample(900, 4, 0, dtype=np.float32)
    groups = np.where(np.arange(900) % 2, "a", "b")
    np.save(tmp_path / "logits.npy", z)
    np.save(tmp_path / "labels.npy", y)
    table = pa.table({"label": y, **{f"c{j}": z[:, j] for j in range(4)}, "group": groups})
    pq.write_table(table, tmp_path / "rows.parquet")
    expected = hetcal.ClassWiseTemperatureScaling().fit(z, y)
    options = ("-m", "cts", "--in-batches", "-o", tmp_path / "c.json")
    for name in ("logits.npy", "rows.parquet"):
        assert run_json("fit", tmp_path / name, *options)["rows"] == 900
        np.testing.assert_allclose(hetcal.load(tmp_path / "c.json").alpha_, expected.alpha_, rtol=1e-6)
    run_json("fit", tmp_path / "rows.parquet", *options, "--by-group")
    assert hetcal.load(tmp_path / "c.json").groups_.tolist() == ["a", "b"]


@pytest.mark.parametrize("extra", [[], ["--change-decisions"]])
def test_fit_auto_in_batches(run_json: Any, make_sample: Any, tmp_path: Path, extra: list[str]) -> None:
    z, y, _ = make_sample(900, 4, 0)
    np.save(tmp_path / "logits.npy", z)
    np.save(tmp_path / "labels.npy", y)
    summaries, probs = [], []
    for route in ([], ["--in-batches"]):
        options = ("-m", "auto", "-o", tmp_path / "c.json", *extra, *route)
        summaries.append(run_json("fit", tmp_path / "logits.npy", *options))
        probs.append(hetcal.load(tmp_path / "c.json").predict_proba(z))
    assert summaries[0]["chosen"] == summaries[1]["chosen"]
    np.testing.assert_allclose(probs[1], probs[0], atol=1e-8)


@pytest.mark.parametrize(
    ("name", "extra", "argument"),
    [
        ("logits.npy", ["--by-group"], "groups"),
        ("logits.npy", ["-m", "isotonic"], "auto, got isotonic, which needs all rows in memory"),
        ("three.parquet", ["-m", "binary"], "2 classes, got 3"),
        ("rows.csv", [], "parquet"),
        ("none.npy", [], "must be a file"),
        ("rows.parquet", ["--by-group"], "'group'"),
        ("bare.parquet", [], "'label'"),
    ],
)
def test_bad_batches(run: Any, tmp_path: Path, name: str, extra: list[str], argument: str) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    np.save(tmp_path / "logits.npy", np.eye(2) * 3)
    np.save(tmp_path / "labels.npy", np.arange(2))
    columns = {"c0": [1.0, 2.0], "c1": [2.0, 0.0]}
    pq.write_table(pa.table({"label": [0, 1], **columns}), tmp_path / "rows.parquet")
    pq.write_table(pa.table({"label": [0, 1], **columns, "c2": [0.0, 1.0]}), tmp_path / "three.parquet")
    pq.write_table(pa.table(columns), tmp_path / "bare.parquet")
    (tmp_path / "rows.csv").write_text("label,a,b")
    options = ("--in-batches", "-m", "cts", *extra, "-o", tmp_path / "c.json")
    code, _, err = run("fit", tmp_path / name, *options)
    assert code == 2
    assert argument in err
    assert not (tmp_path / "c.json").exists()


def write_case_table(path: Path, rows: tuple[Any, Any], delimiter: str = ";") -> Path:
    """A table whose labels are in 'outcome' and whose rows are identified by 'case'."""
    logits, labels = rows
    lines = [["case", "outcome", "cat", "dog", "cow"]]
    for i, (z, y) in enumerate(zip(logits.tolist(), labels, strict=True)):
        lines.append([f"{i:05d}", ["cat", "dog", "cow"][y], *map(str, z)])
    path.write_text("\n".join(delimiter.join(line) for line in lines), encoding="utf-8")
    return path


CASES = ("--label-column", "outcome", "--id-column", "case")


@pytest.mark.parametrize("suffix", ["csv", "parquet", "npz"])
def test_named_columns(run: Any, run_json: Any, rows: tuple[Any, Any], tmp_path: Path, suffix: str) -> None:
    path = write_case_table(tmp_path / "cases.csv", rows)
    result = run_json("evaluate", path, *CASES)
    assert result["nll"] == pytest.approx(hetcal.evaluate(logits=rows[0], labels=rows[1]).nll)
    assert [c["name"] for c in run_json("diagnose", path, *CASES)["classes"]] == ["cat", "dog", "cow"]
    calibrator, output = tmp_path / "cal.json", tmp_path / f"probs.{suffix}"
    assert run_json("fit", path, "-m", "ts", "-o", calibrator, *CASES)["classes"] == 3
    assert run("apply", calibrator, path, "-o", output, *CASES)[0] == 0
    expected = hetcal.TemperatureScaling().fit(*rows).predict_proba(rows[0])
    ids = [f"{i:05d}" for i in range(400)]
    if suffix == "npz":
        with np.load(output) as saved:
            assert saved["ids"].tolist() == ids
            np.testing.assert_allclose(saved["probs"], expected, rtol=1e-9)
        return
    pandas = pytest.importorskip("pandas")
    table = (
        pandas.read_parquet(output) if suffix == "parquet" else pandas.read_csv(output, dtype={"case": str})
    )
    assert table.columns.tolist() == ["case", "prob_cat", "prob_dog", "prob_cow"]
    assert table["case"].tolist() == ids
    np.testing.assert_allclose(table.iloc[:, 1:], expected, rtol=1e-9)
    again = hetcal.load_logits(path, label_column="outcome", id_column="case")
    assert hetcal.evaluate(expected, again.val.labels).nll < result["nll"]


def test_unnamed_columns_are_refused_with_the_options_that_name_them(
    run: Any, rows: tuple[Any, Any], tmp_path: Path
) -> None:
    path = write_case_table(tmp_path / "cases.csv", rows, ",")
    code, _, err = run("evaluate", path, "--label-column", "outcome")
    assert code == 2
    assert "--id-column" in err
    code, _, err = run("evaluate", path, "--id-column", "case")
    assert code == 2
    assert "--label-column" in err
    assert run("evaluate", path, *CASES)[0] == 0


def test_named_columns_in_batches(run_json: Any, rows: tuple[Any, Any], tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pandas.DataFrame(rows[0], columns=["a", "b", "c"]).assign(case=range(400), outcome=rows[1])
    frame.to_parquet(tmp_path / "cases.parquet")
    arguments = (tmp_path / "cases.parquet", "-m", "ts", "-o", tmp_path / "cal.json", *CASES)
    assert run_json("fit", *arguments, "--in-batches")["rows"] == 400
    in_batches = hetcal.load(tmp_path / "cal.json").alpha_
    run_json("fit", *arguments)
    assert in_batches == pytest.approx(hetcal.load(tmp_path / "cal.json").alpha_)


def write_probability_table(path: Path, probs: Any, labels: list[object]) -> Path:
    """A table with the labels and a column of probabilities of the class 'spam'."""
    lines = [f"{label},{p}" for label, p in zip(labels, probs.tolist(), strict=True)]
    path.write_text("\n".join(["label,prob_spam", *lines]), encoding="utf-8")
    return path


def test_one_column_of_probabilities(run: Any, run_json: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    scores = rng.normal(size=600) * 2
    p, y = 1 / (1 + np.exp(-2 * scores)), (rng.random(600) < 1 / (1 + np.exp(-scores))).astype(int)
    named = write_probability_table(tmp_path / "named.csv", p[:300], [["ham", "spam"][k] for k in y[:300]])
    counted = write_probability_table(tmp_path / "counted.csv", p[300:], y[300:].tolist())
    calibrator, output = tmp_path / "cal.json", tmp_path / "probs.csv"
    run_json("fit", named, "-m", "ts", "-o", calibrator)
    assert run("apply", calibrator, counted, "-o", output)[0] == 0
    assert output.read_text(encoding="utf-8").splitlines()[0] == "prob_ham,prob_spam"
    expected = hetcal.load(calibrator).predict_proba(probs=p[300:])
    np.testing.assert_allclose(np.loadtxt(output, delimiter=",", skiprows=1), expected, rtol=1e-9)
    result = run_json("evaluate", counted, "-c", calibrator)
    assert [c["name"] for c in result["classes"]] == ["ham", "spam"]
    assert result["nll"] == pytest.approx(hetcal.evaluate(expected, y[300:]).nll)


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_one_column_for_a_calibrator_of_two_columns(run_json: Any, tmp_path: Path, order: list[int]) -> None:
    rng = np.random.default_rng(4)
    logits, names = rng.normal(size=(300, 2)) * 3, [["ham", "spam"][k] for k in order]
    y = np.where(rng.random(300) < 0.8, logits.argmax(axis=1), rng.integers(0, 2, 300))
    model = hetcal.ClassWiseTemperatureScaling().fit(logits[:200], y[:200], class_names=names)
    hetcal.save(model, tmp_path / "cal.json")
    spam = names.index("spam")
    logits, y = logits[200:], y[200:]
    p = hetcal.Identity().fit(logits, y).predict_proba(logits)[:, spam]
    path = write_probability_table(tmp_path / "p.csv", p, (y == spam).astype(int).tolist())
    expected = hetcal.evaluate(model.predict_proba(logits), y)
    assert run_json("evaluate", path, "-c", tmp_path / "cal.json")["nll"] == pytest.approx(expected.nll)


def test_names_for_one_column_of_probabilities(run: Any, run_json: Any, tmp_path: Path) -> None:
    path = write_probability_table(
        tmp_path / "p.csv", np.linspace(0, 1, 50), [int(i > 20) for i in range(50)]
    )
    classes = tmp_path / "classes.txt"
    classes.write_text("spam\nham\n", encoding="utf-8")
    code, _, err = run("evaluate", path, "--classes", classes)
    assert code == 2
    assert "--classes must list 'spam' second" in err
    classes.write_text("ham\nspam\n", encoding="utf-8")
    result = run_json("evaluate", path, "--classes", classes)
    assert [c["name"] for c in result["classes"]] == ["ham", "spam"]


@pytest.mark.parametrize("command", ["evaluate", "diagnose", "fit", "apply", "plan", "report"])
def test_every_command_that_reads_a_table_accepts_named_columns(
    run: Any, rows: tuple[Any, Any], tmp_path: Path, command: str
) -> None:
    path, calibrator = write_case_table(tmp_path / "cases.csv", rows), tmp_path / "cal.json"
    hetcal.save(hetcal.TemperatureScaling().fit(*rows), calibrator)
    files = [calibrator, path] if command == "apply" else [path]
    output = ["-o", tmp_path / "out.json"] if command in ("fit", "apply") else []
    for options in (["--label-column", "nowhere"], ["--id-column", "nowhere"]):
        code, _, err = run(command, *files, *output, *options)
        assert code == 2
        assert f"{options[0][2:].replace('-', '_')} must be the name of a column of cases.csv" in err
