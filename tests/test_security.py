"""Hostile files are refused, and hostile names are displayed as plain text."""

from __future__ import annotations

import ast
import csv
import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hetcal
import hetcal.logits_files
from hetcal import artefact

PAPER = Path(__file__).parent.parent / "paper" / "src"
SOURCES = sorted([*Path(hetcal.__file__).parent.rglob("*.py"), *PAPER.rglob("*.py")])
# Modules that execute code when they read a file, and parsers that expand hostile input.
BANNED_MODULES = {
    "pickle",
    "cPickle",
    "_pickle",
    "dill",
    "cloudpickle",
    "marshal",
    "shelve",
    "joblib",
    "yaml",
    "xml",
}
BANNED_CALLS = {"eval", "exec", "compile", "__import__", "system", "popen"}


def name_of(call: ast.Call) -> str:
    """Last part of the called name: ``load`` in ``np.load(…)``."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def owner_of(call: ast.Call) -> str:
    """First part of the called name: ``np`` in ``np.load(…)``."""
    value = call.func.value if isinstance(call.func, ast.Attribute) else None
    return getattr(value, "id", "")


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield str(node.module).split(".")[0]


def unsafe_code(text: str) -> list[str]:
    """Unsafe imports and calls in a source file."""
    tree = ast.parse(text)
    problems = [f"import {name}" for name in imported(tree) if name in BANNED_MODULES]
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name, owner = name_of(call), owner_of(call)
        options = {k.arg: getattr(k.value, "value", None) for k in call.keywords}
        bare = isinstance(call.func, ast.Name) or owner in ("os", "builtins")
        unsafe = {
            "runs code": name in BANNED_CALLS and bare,
            "np.load": owner in ("np", "numpy")
            and name == "load"
            and options.get("allow_pickle") is not False,
            "torch.load": owner == "torch" and name == "load" and options.get("weights_only") is not True,
            "shell": "shell" in options,
            "unpacks": name in ("extractall", "extract", "unpack_archive")
            and options.get("filter") != "data",
        }
        problems += [
            f"{problem} in line {call.lineno}: {ast.unparse(call)}"
            for problem, applies in unsafe.items()
            if applies
        ]
    return problems


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.stem)
def test_no_module_can_execute_the_data_it_reads(path: Path) -> None:
    assert unsafe_code(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "text",
    [
        "import pickle", "from pickle import loads", "def f():\n import marshal", "eval('1')",
        "os.system('ls')", "np.load(f)", "np.load(f, allow_pickle=True)", "torch.load(f)",
        "subprocess.run('ls', shell=True)",
        "tar.extractall(folder)", "yaml.load(f); import yaml",
    ],
)  # fmt: skip
def test_unsafe_code_is_detected(text: str) -> None:
    assert unsafe_code(text)


# --- files of logits -------------------------------------------------------------------------------------


def small_npz(path: Path, **more: Any) -> Path:
    np.savez(path, logits=3 * np.eye(3), labels=np.arange(3), **more)
    return path


def with_declared_size(path: Path, size: int) -> Path:
    """An archive whose directory declares a wrong size for its first member."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        sink = io.BytesIO()
        np.save(sink, np.zeros((1000, 2)))
        packed.writestr("logits.npy", sink.getvalue())
        packed.filelist[0].file_size = size
    return path


def test_an_archive_that_declares_a_huge_size_is_refused(tmp_path: Path) -> None:
    bomb = with_declared_size(tmp_path / "a.npz", 1 << 40)
    with pytest.raises(ValueError, match=r"a\.npz must .*got 1099511627776"):
        hetcal.load_logits(bomb)


def test_an_archive_that_declares_too_small_a_size_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a\.npz must"):
        hetcal.load_logits(with_declared_size(tmp_path / "a.npz", 200))


@pytest.mark.parametrize("suffix", ["npz", "parquet"])
def test_bombs_are_refused_before_they_are_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    zeros = np.zeros((400_000, 3))
    columns = {"logits": zeros, "labels": zeros[:, 0].astype(int)}
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
        columns["label"] = columns.pop("labels")
    hetcal.logits_files.save_table(tmp_path / f"a.{suffix}", columns)
    hetcal.load_logits(tmp_path / f"a.{suffix}")  # within the limit
    monkeypatch.setattr(hetcal.logits_files, "_MAX_UNPACKED_BYTES", 1 << 20)
    with pytest.raises(ValueError, match=rf"a\.{suffix} must .*got 1280"):
        hetcal.load_logits(tmp_path / f"a.{suffix}")


@pytest.mark.parametrize("shape", [(10**15, 2), (10**9, 2), (2**62, 4)])
def test_a_header_that_declares_more_rows_than_the_file_has(tmp_path: Path, shape: tuple[int, ...]) -> None:
    with (tmp_path / "a_logits.npy").open("wb") as file:
        header = {"descr": "<f8", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        file.write(bytes(64))
    with pytest.raises(ValueError, match=r"a_logits\.npy must"):
        hetcal.load_logits(tmp_path / "a_logits.npy")


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a": ' * 2000, '{"a": ' + "9" * 6000 + "}", "\x00", "5"])
def test_an_invalid_provenance_is_ignored(tmp_path: Path, text: str) -> None:
    assert hetcal.load_logits(small_npz(tmp_path / "a.npz", provenance=text)).about == {}


# --- saved calibrators -----------------------------------------------------------------------------------


def calibrator_json(body: Any, **changes: Any) -> str:
    content = {"format": "hetcal.calibrator", "schema": 1, "checksum": artefact._checksum(body)} | changes
    return json.dumps(content | {"calibrator": body})


def temperature(**state: Any) -> dict[str, Any]:
    return {"type": "TemperatureScaling", "params": {}, "state": {"n_features_in_": 3, "alpha_": 1.0} | state}


@pytest.mark.parametrize("depth", [100, 900, 990, 1100, 5000, 200_000])
def test_deep_nesting_gives_one_short_error(depth: int) -> None:
    nested = "[" * depth + "]" * depth
    content = f'{{"format": "hetcal.calibrator", "schema": 1, "checksum": "", "calibrator": {nested}}}'
    for text in (nested, content):
        with pytest.raises(ValueError, match=r"^c\.json must") as caught:
            artefact.decode(text, "c.json")
        assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "number", ["9" * 4000, "9" * 5000, "-" + "9" * 5000, "1e999", "NaN", "1" + "0" * 400]
)
@pytest.mark.parametrize("where", ["schema", "alpha_"])
def test_huge_numbers_give_one_short_error(number: str, where: str) -> None:
    text = calibrator_json(temperature()).replace(*{"schema": ('"schema": 1', f'"schema": {number}'),
                                           "alpha_": ("1.0", number)}[where])  # fmt: skip
    with pytest.raises(ValueError, match=r"^c\.json") as caught:
        artefact.decode(text, "c.json")
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("value", [10**400, float("inf"), float("nan"), -1.0, {"array": [10**30]}])
def test_invalid_temperatures_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"c\.json must"):
        artefact.decode(calibrator_json(temperature(alpha_=value)), "c.json")


def test_one_long_name_does_not_enlarge_all_names() -> None:
    names = {"array": ["a" * 30_000, *["b"] * 100_000], "dtype": "str"}  # 12 GB as an array of text
    with pytest.raises(ValueError, match=r"names must .*268435456"):
        artefact.decode(calibrator_json(temperature(feature_names_in_=names)), "c.json")


def test_a_file_of_many_groups_and_classes_is_tried_on_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    n_groups, n_classes = 20_000, 2000
    state = {
        "alpha_": artefact._pack(np.ones(n_groups)),
        "groups_": artefact._pack(np.array([f"g{i:05}" for i in range(n_groups)])),
        "n_features_in_": n_classes,
    }
    sizes, predict = [], hetcal.ClassWiseTemperatureScaling.predict_proba

    def counted(self: Any, logits: Any, **more: Any) -> Any:
        sizes.append(logits.size)
        return predict(self, logits, **more)

    monkeypatch.setattr(hetcal.ClassWiseTemperatureScaling, "predict_proba", counted)
    body = {"type": "ClassWiseTemperatureScaling", "params": {}, "state": state}
    calibrator = artefact.decode(calibrator_json(body), "c.json")
    assert len(calibrator.groups_) == n_groups
    assert 0 < sum(sizes) <= artefact._TEST_ELEMENTS  # one row per group and class would be 80 billion logits


def test_every_group_of_a_small_file_is_checked() -> None:
    alpha = np.ones(500)
    alpha[321] = np.nan
    groups = np.array([f"g{i:03}" for i in range(500)])
    state = {"alpha_": artefact._pack(alpha), "groups_": artefact._pack(groups), "n_features_in_": 3}
    body = {"type": "ClassWiseTemperatureScaling", "params": {}, "state": state}
    with pytest.raises(ValueError, match="alpha must") as caught:
        artefact.decode(calibrator_json(body), "c.json")
    assert len(str(caught.value)) < 300


# --- names from files ------------------------------------------------------------------------------------

ESCAPES = (
    "\x1b[2J\x1b]0;title\x07wiped",
    "[/red] [bold]x",
    "lone \ud800",
    "$\\frac{a$",
    "=1+1",
    "<b>\r\n|`x`",
)


@pytest.fixture(scope="module")
def hostile_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Names of classes and groups that terminals, encodings, tables or markup might interpret."""
    rng = np.random.default_rng(0)
    z = 3 * rng.normal(size=(600, 6))
    groups = np.array(ESCAPES)[np.arange(600) % 6]
    path = tmp_path_factory.mktemp("hostile") / "a.npz"
    np.savez(path, logits=z, labels=rng.integers(0, 6, 600), class_names=np.array(ESCAPES), groups=groups)
    return path


@pytest.mark.parametrize("command", ["evaluate", "diagnose"])
@pytest.mark.parametrize("more", [(), ("--json",)])
def test_names_do_not_control_the_terminal(
    hostile_file: Path, capsys: pytest.CaptureFixture[str], command: str, more: tuple[str, ...]
) -> None:
    pytest.importorskip("typer")
    from hetcal.__main__ import main

    assert main([command, str(hostile_file), *more]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "wiped" in shown
    assert "[/red] [bold]x" in shown
    shown.encode()


def test_names_from_a_text_file_do_not_control_the_terminal(
    hostile_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("typer")
    from hetcal.__main__ import main

    (tmp_path / "names.txt").write_text("\x1b[2Jwiped\nb\nc\nd\ne\nf\n")
    assert main(["diagnose", str(hostile_file), "--classes", str(tmp_path / "names.txt")]) == 0
    assert "\ufffd[2Jwiped" in capsys.readouterr().out


def test_names_in_tables_are_not_spreadsheet_formulas(hostile_file: Path, tmp_path: Path) -> None:
    pytest.importorskip("typer")
    from hetcal.__main__ import main

    hetcal.save(hetcal.Identity().fit(3 * np.eye(6), np.arange(6)), tmp_path / "c.json")
    out = tmp_path / "p.csv"
    assert main(["apply", str(tmp_path / "c.json"), str(hostile_file), "-o", str(out)]) == 0
    with out.open(newline="", encoding="utf-8") as file:
        head, *rows = csv.reader(file)
    assert len(head) == 6
    assert all(cell.startswith("prob_") and "\x1b" not in cell for cell in head)
    assert all(0 <= float(cell) <= 1 for row in rows for cell in row)


# --- models in ONNX --------------------------------------------------------------------------------------


def external_model(folder: Path, location: str) -> Path:
    """A model with weights in another file."""
    onnx = pytest.importorskip("onnx")
    weights = onnx.TensorProto(name="w", data_type=1, dims=[2, 2], data_location=onnx.TensorProto.EXTERNAL)
    weights.external_data.add(key="location", value=location)
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["logits"])], "g",
        [onnx.helper.make_tensor_value_info("x", 1, ["n", 2])],
        [onnx.helper.make_tensor_value_info("logits", 1, ["n", 2])], [weights],
    )  # fmt: skip
    opset = [onnx.helper.make_opsetid("", 18)]
    model = onnx.helper.make_model(graph, opset_imports=opset, ir_version=9)
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    return folder / "m.onnx"


@pytest.mark.parametrize("location", ["../secret", "absolute", "link", "./../secret", "missing"])
def test_a_model_reads_no_weights_from_outside_its_folder(tmp_path: Path, location: str) -> None:
    (tmp_path / "secret").write_bytes(b"sixteen letters!")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path / "secret")
    where = str(tmp_path / "secret") if location == "absolute" else location
    path = external_model(folder, where)
    from hetcal.onnx import export

    calibrator = hetcal.Identity().fit(3 * np.eye(2), [0, 1])
    with pytest.raises(ValueError, match=r"model must .*got 'm\.onnx'"):
        export(calibrator, tmp_path / "out.onnx", path)
    assert not (tmp_path / "out.onnx").exists()


def test_a_model_with_external_weights_becomes_one_file(tmp_path: Path) -> None:
    path = external_model(tmp_path, "weights")
    (tmp_path / "weights").write_bytes(np.eye(2, dtype=np.float32).tobytes())
    from hetcal.onnx import export

    export(hetcal.Identity().fit(3 * np.eye(2), [0, 1]), tmp_path / "out.onnx", path)
    assert np.eye(2, dtype=np.float32).tobytes() in (tmp_path / "out.onnx").read_bytes()
