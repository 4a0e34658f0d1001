"""The command line as a user types it: output, JSON, exit codes, one clear line on bad input."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

import hetcal
from hetcal import cli
from hetcal.__main__ import main
from hetcal.calibrators.auto import THEN

RNG = np.random.default_rng(5)
LOGITS = RNG.normal(size=(400, 3)) * 3
LABELS = np.where(RNG.random(400) < 0.75, LOGITS.argmax(axis=1), RNG.integers(0, 3, 400))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "logits.npz"
    np.savez(
        path,
        val_logits=LOGITS[:200],
        val_labels=LABELS[:200],
        test_logits=LOGITS[200:],
        test_labels=LABELS[200:],
    )
    return path


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main([str(w) for w in words])
    seen = capsys.readouterr()
    return code, seen.out, seen.err


def run_json(capsys: pytest.CaptureFixture[str], *words: object) -> Any:
    code, out, err = run(capsys, *words, "--json")
    assert code == 0, err
    return json.loads(out)


def test_evaluate_prints_what_the_library_computes(capsys: pytest.CaptureFixture[str], data: Path) -> None:
    shown = run_json(capsys, "evaluate", data, "--bins", 10)
    probs = hetcal.Identity().fit(LOGITS, LABELS).predict_proba(LOGITS[200:])
    assert shown["ece"] == pytest.approx(hetcal.metrics.ece(probs, LABELS[200:], n_bins=10))
    code, out, _ = run(capsys, "evaluate", data)
    assert code == 0
    assert "max_ece" in out


def test_diagnose_names_classes_and_uses_counts(
    capsys: pytest.CaptureFixture[str], data: Path, tmp_path: Path
) -> None:
    (tmp_path / "names.txt").write_text("cat\ndog\n[red]cow\n", encoding="utf-8")
    (tmp_path / "counts.csv").write_text("class,count\ncat,10\ndog,500\ncow,500\n", encoding="utf-8")
    options = ("--classes", tmp_path / "names.txt", "--train-counts", tmp_path / "counts.csv")
    shown = run_json(capsys, "diagnose", data, *options)
    assert [c["name"] for c in shown["classes"]] == ["cat", "dog", "[red]cow"]
    code, out, _ = run(capsys, "diagnose", data, *options)
    assert code == 0
    assert "[red]cow" in out  # shown as text, not taken as markup


@pytest.mark.parametrize(
    "method", ["identity", "ts", "vs", "platt", "isotonic", "histogram", "cts", "classwise-platt", "auto"]
)
def test_fit_apply_evaluate(
    capsys: pytest.CaptureFixture[str], data: Path, tmp_path: Path, method: str
) -> None:
    cal = tmp_path / "cal.json"
    assert run_json(capsys, "fit", data, "--method", method, "-o", cal)["rows"] == 200
    code, out, _ = run(capsys, "apply", cal, data, "-o", tmp_path / "probs.npz")
    assert code == 0
    assert "200 rows" in out
    expected = hetcal.load(cal).predict_proba(LOGITS[200:])
    with np.load(tmp_path / "probs.npz") as saved:
        np.testing.assert_array_equal(saved["test_probs"], expected)
    shown = run_json(capsys, "evaluate", data, "--calibrator", cal)
    assert shown["nll"] == pytest.approx(hetcal.metrics.nll(expected, LABELS[200:]))


def test_auto_tells_the_weights(capsys: pytest.CaptureFixture[str], data: Path, tmp_path: Path) -> None:
    cal = tmp_path / "cal.json"
    shown = run_json(capsys, "fit", data, "-o", cal)
    weights = {c["name"]: c["weight"] for c in shown["candidates"]}
    assert sum(weights.values()) == pytest.approx(1)
    assert shown["chosen"] == hetcal.load(cal).best_name_
    code, out, _ = run(capsys, "fit", data, "-o", cal)
    assert code == 0
    assert "Weight" in out
    lines = [[cell.strip() for cell in line.split("│")] for line in out.splitlines()]
    table = {cells[1]: cells[4] for cells in lines if len(cells) == 6}
    expected = {k: f"{w:.0%}" if w >= 0.005 else "<1%" if w else "–" for k, w in weights.items()}
    assert table == expected
    assert shown["chosen"].endswith(THEN)
    said = "Auto is the mean of their probabilities by weight, with class-wise Platt scaling behind it."
    assert f"{said} No decision changes." in " ".join(out.split())


@pytest.mark.parametrize(("gamma", "expected"), [("0", 0.0), ("0.3", 0.3), ("inf", np.inf)])
def test_gamma_reaches_the_calibrator(
    capsys: pytest.CaptureFixture[str], data: Path, tmp_path: Path, gamma: str, expected: float
) -> None:
    run_json(capsys, "fit", data, "-m", "cts", "--gamma", gamma, "-o", tmp_path / "cal.json")
    assert hetcal.load(tmp_path / "cal.json").gamma_ == expected


@pytest.mark.filterwarnings("default::hetcal.CalibrationWarning")
def test_fit_by_group(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    groups = np.array(["a", "b"] * 200)
    np.savez(tmp_path / "g.npz", logits=LOGITS, labels=LABELS, groups=groups)
    run_json(capsys, "fit", tmp_path / "g.npz", "-m", "cts", "--by-group", "-o", tmp_path / "cal.json")
    assert list(hetcal.load(tmp_path / "cal.json").groups_) == ["a", "b"]
    code, _, _ = run(capsys, "apply", tmp_path / "cal.json", tmp_path / "g.npz", "-o", tmp_path / "p.csv")
    assert code == 0
    code, _, said = run(capsys, "evaluate", tmp_path / "g.npz", "-c", tmp_path / "cal.json", "--json")
    assert code == 0
    assert "hetcal: warning: a calibrator should be judged on rows that it was not fitted on" in said


def test_theory_in_json_and_as_a_figure(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rows = run_json(capsys, "theory", "--draws", 50, "-o", tmp_path / "new")["rows"]
    assert (tmp_path / "new" / "theory.png").stat().st_size > 10_000
    assert {"claim", "promised", "exact", "simulated", "holds"} <= set(rows[0])


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--version") == (0, f"hetcal {hetcal.__version__}\n", "")
    for words in (["--help"], ["fit", "--help"], ["reproduce", "--help"], ["train", "--help"]):
        code, out, _ = run(capsys, *words)
        assert code == 0
        assert "Usage" in out


def test_no_command_shows_the_help_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys)
    assert (code, err) == (2, "")
    assert "Usage" in out


def test_a_table_of_probabilities_goes_through_every_step(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    probs = hetcal.Identity().fit(LOGITS, LABELS).predict_proba(LOGITS)
    rows = [
        f"{i},{','.join(map(str, p))},{'abc'[y]}" for i, (p, y) in enumerate(zip(probs, LABELS, strict=True))
    ]
    (tmp_path / "p.csv").write_text("\n".join(["id,prob_a,prob_b,prob_c,label", *rows]), encoding="utf-8")
    assert run(capsys, "fit", tmp_path / "p.csv", "-m", "ts", "-o", tmp_path / "cal.json")[0] == 0
    assert hetcal.load(tmp_path / "cal.json").alpha_ == pytest.approx(
        hetcal.TemperatureScaling().fit(LOGITS, LABELS).alpha_, rel=1e-3
    )
    assert run(capsys, "apply", tmp_path / "cal.json", tmp_path / "p.csv", "-o", tmp_path / "out.csv")[0] == 0
    header, first = (tmp_path / "out.csv").read_text(encoding="utf-8").splitlines()[:2]
    assert header == "prob_a,prob_b,prob_c"
    assert sum(map(float, first.split(","))) == pytest.approx(1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["evaluate", "nothing.npz"], "does not exist"),
        (["evaluate", "{data}", "--bins", "0"], "--bins"),
        (["evaluate", "{data}", "--calibrator", "{data}"], "not text"),
        (["fit", "{data}", "-m", "nope", "-o", "x.json"], "method must be one of"),
        (["fit", "{data}", "-m", "cts", "--gamma", "lots", "-o", "x.json"], "--gamma must be a number"),
        (["fit", "{data}", "-m", "cts", "--gamma", "-1", "-o", "x.json"], "gamma must be"),
        (["fit", "{data}", "-m", "ts", "--gamma", "1", "-o", "x.json"], "gamma must be left out"),
        (["fit", "{data}", "-m", "cts", "--by-group", "-o", "x.json"], "which has none"),
        (["fit", "{data}", "-o", "no/such/folder/x.json"], "folder of the output file must exist"),
        (["fit", "{data}"], "--output"),
        (["apply", "{data}", "{data}", "-o", "p.npz"], "not text"),
        (["report", "{data}", "--format", "pdf", "-o", "r.pdf"], "format must be one of"),
        (["bogus"], "bogus"),
    ],
)
def test_bad_input_gives_one_line_and_code_2(
    capsys: pytest.CaptureFixture[str],
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    before = set(tmp_path.iterdir())
    code, _, err = run(capsys, *(w.replace("{data}", str(data)) for w in words))
    assert code == 2
    assert message in err
    assert err.startswith("hetcal: ")
    assert err.count("\n") == 1
    assert set(tmp_path.iterdir()) == before


def test_apply_refuses_a_format_that_cannot_hold_two_sets(
    capsys: pytest.CaptureFixture[str], data: Path, tmp_path: Path
) -> None:
    run(capsys, "fit", data, "-m", "ts", "-o", tmp_path / "cal.json")
    code, _, err = run(capsys, "apply", tmp_path / "cal.json", data, "-o", tmp_path / "p.csv")
    assert code == 2
    assert ".npz" in err


def test_warnings_are_one_line_each(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    sure = np.zeros((20, 3))
    sure[np.arange(20), np.arange(20) % 3] = 5.0
    np.savez(tmp_path / "a.npz", logits=sure, labels=np.arange(20) % 3)
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("default")
        code, _, err = run(capsys, "fit", tmp_path / "a.npz", "-m", "cts", "-o", tmp_path / "cal.json")
    assert code == 0
    assert "hetcal: warning: the best temperature lies at a bound" in err


def test_as_a_program(data: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hetcal", "evaluate", str(data), "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)["n"] == 200


def test_fit_in_batches(tmp_path, make_sample, capsys):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    z, y, _ = make_sample(900, 4, 0, dtype=np.float32)
    g = np.where(np.arange(900) % 2, "a", "b")
    np.save(tmp_path / "logits.npy", z)
    np.save(tmp_path / "labels.npy", y)
    table = pa.table({"label": y, **{f"c{j}": z[:, j] for j in range(4)}, "group": g})
    pq.write_table(table, tmp_path / "rows.parquet")
    expected = hetcal.ClassWiseTemperatureScaling().fit(z, y)
    options = ("-m", "cts", "--in-batches", "-o", tmp_path / "c.json")
    for name in ("logits.npy", "rows.parquet"):
        assert run_json(capsys, "fit", tmp_path / name, *options)["rows"] == 900
        np.testing.assert_allclose(hetcal.load(tmp_path / "c.json").alpha_, expected.alpha_, rtol=1e-6)
    run_json(capsys, "fit", tmp_path / "rows.parquet", *options, "--by-group")
    assert hetcal.load(tmp_path / "c.json").groups_.tolist() == ["a", "b"]


@pytest.mark.parametrize(
    ("name", "extra", "message"),
    [
        ("logits.npy", ["--by-group"], "groups must be in a Parquet file to be read in batches"),
        ("logits.npy", ["-m", "auto"], "--in-batches must come with --method"),
        ("rows.csv", [], "LOGITS must be .npy, .parquet or a folder of .parquet"),
        ("none.npy", [], "LOGITS must be a file"),
        ("rows.parquet", ["--by-group"], "rows.parquet must have a column 'group', got label, c0, c1"),
        ("bare.parquet", [], "bare.parquet must have a column 'label', got c0, c1"),
    ],
)
def test_what_cannot_be_read_in_batches(tmp_path, capsys, name, extra, message):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    np.save(tmp_path / "logits.npy", np.eye(2) * 3)
    np.save(tmp_path / "labels.npy", np.arange(2))
    columns = {"c0": [1.0, 2.0], "c1": [2.0, 0.0]}
    pq.write_table(pa.table({"label": [0, 1], **columns}), tmp_path / "rows.parquet")
    pq.write_table(pa.table(columns), tmp_path / "bare.parquet")
    (tmp_path / "rows.csv").write_text("label,a,b")
    words = ("fit", tmp_path / name, "--in-batches", "-m", "cts", *extra, "-o", tmp_path / "c.json")
    code, _, error = run(capsys, *words)
    assert code != 0
    assert message in " ".join(error.split())
    assert not (tmp_path / "c.json").exists()


@pytest.mark.parametrize("words", [["train", "table1", "--next"], ["reproduce", "table2", "--json"]])
def test_commands_of_the_paper_say_how_to_install_them(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "app", typer.Typer(pretty_exceptions_enable=False))
    monkeypatch.setattr(cli.metadata, "entry_points", lambda **_: metadata.EntryPoints())
    cli._add_installed_commands()
    code, out, error = run(capsys, *words)
    assert (code, out) == (2, "")
    assert error.startswith(f"hetcal: hetcal {words[0]} needs hetcal-paper")
    assert error.endswith("pip install ./paper\n")


def test_installed_packages_add_commands(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    entry_point = metadata.EntryPoint("version", "platform:python_version", "hetcal.commands")
    monkeypatch.setattr(cli, "app", typer.Typer())
    monkeypatch.setattr(cli.metadata, "entry_points", lambda **_: metadata.EntryPoints([entry_point]))
    cli._add_installed_commands()
    assert run(capsys, "version")[0] == 0
