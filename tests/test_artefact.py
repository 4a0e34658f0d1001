"""Calibrators as JSON: round trips, and rejection of damaged files."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

import hetcal
from hetcal import artefact
from hetcal.calibrators.base import REGISTRY

RNG = np.random.default_rng(3)
LOGITS = RNG.normal(size=(300, 5)) * 2
LABELS = np.where(RNG.random(300) < 0.7, LOGITS.argmax(axis=1), RNG.integers(0, 5, 300))
GROUPS = np.where(RNG.random(300) < 0.5, "north", "south")

CLASSES = [cls for cls in REGISTRY.values() if cls.__module__.startswith("hetcal.")]
EXAMPLES: dict[str, Any] = {
    f"{cls.__name__}-{i}": example for cls in CLASSES for i, example in enumerate(cls._examples())
}


def fitted(example: Any, groups: Any = None) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hetcal.CalibrationWarning)
        k = example._required_classes or LOGITS.shape[1]
        return clone(example).fit(LOGITS[:, :k], np.minimum(LABELS, k - 1), groups=groups)


def class_wise() -> Any:
    return fitted(hetcal.ClassWiseTemperatureScaling())


@pytest.mark.parametrize("name", EXAMPLES)
def test_parameters_and_learned_attributes_are_restored(name: str) -> None:
    """Predictions are compared with all other routes in tests/export/test_routes.py."""
    model = fitted(EXAMPLES[name])
    text = artefact.encode(model)
    loaded = artefact.decode(text, "cal.json")
    assert artefact.encode(loaded) == text
    params = {k: v for k, v in model.get_params().items() if isinstance(v, bool | int | float | str)}
    assert params.items() <= loaded.get_params().items()
    assert vars(loaded).keys() == vars(model).keys()


@pytest.mark.parametrize("kind", ["text", "numbers"])
def test_round_trip_with_groups(kind: str) -> None:
    groups = GROUPS if kind == "text" else (GROUPS == "north").astype(int)
    model = fitted(hetcal.ClassWise(hetcal.PlattScaling(), gamma=0.5), groups)
    loaded = artefact.decode(artefact.encode(model), "cal.json")
    np.testing.assert_array_equal(
        loaded.predict_proba(LOGITS, groups=groups), model.predict_proba(LOGITS, groups=groups)
    )


@pytest.mark.filterwarnings("ignore::hetcal.CalibrationWarning")
@pytest.mark.parametrize(
    "model",
    [
        hetcal.TemperatureScaling(),
        hetcal.ClassWise(hetcal.TopLabelIsotonic()),
        hetcal.Chain([hetcal.TemperatureScaling(), hetcal.PlattScaling()]),
        hetcal.AutoCalibrator(cv=2),
    ],
    ids=lambda model: type(model).__name__,
)
def test_a_fit_on_a_data_frame_is_saved_with_its_column_names(tmp_path: Path, model: Any) -> None:
    pandas = pytest.importorskip("pandas")
    model.fit(pandas.DataFrame(LOGITS, columns=list("abcde")), LABELS)
    hetcal.save(model, tmp_path / "cal.json")
    assert list(hetcal.load(tmp_path / "cal.json").feature_names_in_) == list("abcde")


def test_the_file_is_plain_strict_json(tmp_path: Path) -> None:
    hetcal.save(class_wise(), tmp_path / "cal.json")
    body = json.loads(
        (tmp_path / "cal.json").read_text(), parse_constant=lambda text: pytest.fail(f"{text} is not JSON")
    )
    assert body["schema"] == 2
    assert body["calibrator"]["type"] == "ClassWiseTemperatureScaling"


def test_unfitted_and_foreign_calibrators_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be fitted"):
        hetcal.save(hetcal.TemperatureScaling(), tmp_path / "a.json")

    class Foreign:
        pass

    with pytest.raises(TypeError, match="hetcal's own"):
        hetcal.save(Foreign(), tmp_path / "a.json")
    assert not list(tmp_path.iterdir())


def test_a_class_of_another_module_does_not_replace_a_class_of_hetcal(tmp_path: Path) -> None:
    namesake = type("TemperatureScaling", (hetcal.TemperatureScaling,), {"__module__": "elsewhere"})
    assert REGISTRY["TemperatureScaling"] is hetcal.TemperatureScaling
    hetcal.save(namesake().fit(LOGITS, LABELS), tmp_path / "c.json")
    assert type(hetcal.load(tmp_path / "c.json")) is namesake
    REGISTRY.pop("elsewhere.TemperatureScaling")
    with pytest.raises(ValueError, match=r"elsewhere\.TemperatureScaling.*import"):
        hetcal.load(tmp_path / "c.json")


def test_files_do_not_load_into_another_class_of_the_same_name(tmp_path: Path) -> None:
    first = type("Mine", (hetcal.TemperatureScaling,), {"__module__": "one"})
    hetcal.save(first().fit(LOGITS, LABELS), tmp_path / "c.json")
    del REGISTRY["one.Mine"]
    type("Mine", (hetcal.PlattScaling,), {"__module__": "two"})
    with pytest.raises(ValueError, match=r"one\.Mine"):
        hetcal.load(tmp_path / "c.json")
    del REGISTRY["two.Mine"]


def test_a_class_defined_in_main_cannot_be_saved(tmp_path: Path) -> None:
    for _ in range(2):
        latest = type("Notebook", (hetcal.TemperatureScaling,), {"__module__": "__main__"})
    assert REGISTRY["__main__.Notebook"] is latest
    with pytest.raises(TypeError, match="module"):
        hetcal.save(latest().fit(LOGITS, LABELS), tmp_path / "c.json")
    del REGISTRY["__main__.Notebook"]


def damaged_file(tmp_path: Path, change: Any, *, with_checksum: bool = True) -> Path:
    hetcal.save(class_wise(), tmp_path / "cal.json")
    content = json.loads((tmp_path / "cal.json").read_text())
    change(content)
    if with_checksum:
        content["checksum"] = artefact._checksum(content["calibrator"])
    (tmp_path / "cal.json").write_text(json.dumps(content))
    return tmp_path / "cal.json"


def set_alpha(content: dict[str, Any], values: list[Any]) -> None:
    alpha = content["calibrator"]["state"]["alpha_"]
    alpha["array"], alpha["shape"] = values, [len(values)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.update(schema=3), "upgrade hetcal"),
        (lambda w: w.update(schema="1"), "schema must"),
        (lambda w: w.update(format="other"), "another JSON file"),
        (lambda w: w["calibrator"].update(type="Trap"), "type must"),
        (lambda w: w["calibrator"]["params"].update(shell="rm"), "unexpected keyword"),
        (lambda w: w["calibrator"]["state"].update(__class__=1), "'_'"),
        (lambda w: w["calibrator"]["state"].pop("alpha_"), "working calibrator"),
        (lambda w: w["calibrator"]["state"].update(n_features_in_=1), "n_features_in_"),
        (lambda w: set_alpha(w, [1.0]), "working calibrator"),
        (lambda w: set_alpha(w, [-1.0] * 5), "alpha must"),
        (lambda w: set_alpha(w, [{"number": "nan"}] * 5), "working calibrator"),
        (lambda w: set_alpha(w, ["a"] * 5), "working calibrator"),
    ],
)
def test_a_changed_file_is_refused_even_with_a_correct_checksum(
    tmp_path: Path, change: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        hetcal.load(damaged_file(tmp_path, change))


@pytest.mark.parametrize("values", [[20.2, 0.2, 1.0], [-0.1, 0.2, 1.0], [{"number": "nan"}, 0.2, 1.0]])
@pytest.mark.parametrize("corner", ["x_", "y_"])
def test_a_curve_outside_its_range_is_refused(values: list[Any], corner: str) -> None:
    def curve(numbers: list[Any]) -> dict[str, Any]:
        return {"array": numbers, "dtype": "float64", "shape": [3]}

    # A confidence of 20.2 does not affect the trial predictions, so it must be checked explicitly.
    state = {"x_": curve([0.4, 0.5, 0.6]), "y_": curve([0.4, 0.5, 0.6]), "n_features_in_": 3}
    body = {"type": "TopLabelIsotonic", "params": {}, "state": state | {corner: curve(values)}}
    content = {
        "format": "hetcal.calibrator",
        "schema": 1,
        "checksum": artefact._checksum(body),
        "calibrator": body,
    }
    with pytest.raises(ValueError, match=rf" {corner[0]} must"):
        artefact.decode(json.dumps(content), "cal.json")


def test_the_checksum_notices_a_changed_number(tmp_path: Path) -> None:
    path = damaged_file(tmp_path, lambda w: set_alpha(w, [1.0, 1.0, 1.0, 1.0, 1.5]), with_checksum=False)
    with pytest.raises(ValueError, match="checksum"):
        hetcal.load(path)


def test_files_that_are_not_calibrators(tmp_path: Path) -> None:
    for content in (b"", b"{", b"[]", b"3", b"\xff\xfe", b'{"format": "hetcal.calibrator"}', b"[" * 100_000):
        (tmp_path / "a.json").write_bytes(content)
        with pytest.raises(ValueError, match=r"a\.json"):
            hetcal.load(tmp_path / "a.json")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        hetcal.load(tmp_path / "none.json")
    with pytest.raises(FileNotFoundError, match="is a folder"):
        hetcal.load(tmp_path)


@pytest.mark.parametrize("fingerprint", [3, {"dict": {"sample": ["not hexadecimal"]}}])
def test_invalid_fingerprints_are_named(fingerprint: object) -> None:
    document = json.loads(artefact.encode(class_wise()))
    document["calibrator"]["state"]["fitted_on_"] = fingerprint
    document["checksum"] = artefact._checksum(document["calibrator"])
    with pytest.raises(ValueError, match="fitted_on_ must"):
        artefact.decode(json.dumps(document), "a.json")


def test_random_damage_is_refused_or_harmless(tmp_path: Path) -> None:
    model = class_wise()
    hetcal.save(model, tmp_path / "cal.json")
    text = (tmp_path / "cal.json").read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(300):
        mutant = bytearray(text)
        mutant[rng.integers(len(mutant))] = int(rng.integers(32, 127))
        (tmp_path / "m.json").write_bytes(mutant)
        try:
            loaded = hetcal.load(tmp_path / "m.json")
        except ValueError:
            continue
        np.testing.assert_array_equal(loaded.predict_proba(LOGITS), model.predict_proba(LOGITS))


@pytest.mark.parametrize("name", EXAMPLES)
def test_files_satisfy_the_json_schema(name: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(artefact.json_schema())
    validator.check_schema(artefact.json_schema())
    groups = GROUPS if getattr(EXAMPLES[name], "bundles", None) is None else None
    content = json.loads(artefact.encode(fitted(EXAMPLES[name], groups)))
    validator.validate(content)
    content["calibrator"]["state"]["__class__"] = 1
    assert not validator.is_valid(content)


def test_newer_files_of_the_same_schema_load() -> None:
    body = json.loads(artefact.encode(class_wise()))
    loaded = artefact.decode(
        json.dumps({**body, "hetcal": "9.9.9", "notes": {"by": "a later version"}}), "c.json"
    )
    np.testing.assert_array_equal(loaded.alpha_, class_wise().alpha_)


def mutated(value: Any, rng: np.random.Generator) -> Any:
    """The same JSON with one random change in a random place."""
    replacements = [
        None,
        True,
        -1,
        0,
        1e308,
        10**30,
        "",
        "nan",
        "\ud83d",
        [],
        {},
        [[]],
        {"a": 1},
        {"number": "x"},
    ]
    if isinstance(value, dict | list) and value and rng.random() < 0.9:
        keys = list(value) if isinstance(value, dict) else range(len(value))
        key = keys[rng.integers(len(keys))]
        copy = dict(value) if isinstance(value, dict) else list(value)
        kind = rng.random()
        if kind < 0.1:
            copy.pop(key)
        elif kind < 0.15 and isinstance(copy, dict):
            copy[f"{key}_"] = copy.pop(key)
        else:
            copy[key] = mutated(value[key], rng)
        return copy
    return replacements[rng.integers(len(replacements))]


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name.endswith("-0")])
def test_mutations_with_a_correct_checksum(name: str) -> None:
    content = json.loads(artefact.encode(fitted(EXAMPLES[name])))
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(300):
        body = mutated(content["calibrator"], rng)
        text = json.dumps({**content, "calibrator": body, "checksum": artefact._checksum(body)})
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                loaded = artefact.decode(text, "c.json")
                p = loaded.predict_proba(np.zeros((2, loaded.n_features_in_)) + 1.0)
        except ValueError as error:
            clear = str(error).startswith(("c.json must", "c.json:", "groups must", "logits must"))
            refused += 1
            if not clear:
                raise
            continue
        np.testing.assert_allclose(p.sum(axis=1), 1, atol=1e-6)
    assert refused > 50


@pytest.mark.parametrize(
    "body",
    [
        {"type": "Identity", "params": {}, "state": {"n_features_in_": 10**12}},
        {"type": "Identity", "params": {}, "state": {"n_features_in_": {}}},
        {"type": "Identity", "params": {}, "state": {"n_features_in_": {"tuple": [{"a": 1, "b": 2}]}}},
        {
            "type": "TemperatureScaling",
            "params": {},
            "state": {"n_features_in_": 3, "alpha_": {"number": "nan"}},
        },
    ],
)
def test_hostile_files(body: Any) -> None:
    text = json.dumps(
        {"format": "hetcal.calibrator", "schema": 1, "checksum": artefact._checksum(body), "calibrator": body}
    )
    with pytest.raises(ValueError, match=r"c\.json must"):
        artefact.decode(text, "c.json")
