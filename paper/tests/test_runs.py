from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from hetcal_paper import runs
from hetcal_paper.runs import Run, clean, few, noise, parse, sample, under

EXAMPLES = {
    "c10-clean-s3": clean("c10", 3),
    "c10-noise-0-4-r0.30-s0": noise("c10", (0, 4), 0.3, 0),
    "c100-noise-all-r0.30-s1": noise("c100", None, 0.3, 1),
    "c100-under-0-49-r0.05-s4": under("c100", (0, 49), 0.05, 4),
    "c10-under-all-r0.02-s0": sample("c10", 0.02, 0),
    "c10-few-n100-s2": few("c10", 100, 2),
    "c10-noise-1-1-r0.125-s0": noise("c10", (1, 1), 0.125, 0),
    "c100-clean-s0-net_resnet20-opt_adam-e60-b64-wd0.00001": clean(
        "c100", 0, network="resnet20", recipe="adam", epochs=60, batch_size=64, weight_decay=1e-5
    ),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_names_round_trip(name: str) -> None:
    assert EXAMPLES[name].name == name
    assert parse(name) == EXAMPLES[name]


def test_json_round_trip() -> None:
    for run in EXAMPLES.values():
        assert Run.from_dict(json.loads(json.dumps(run.to_dict()))) == run


def test_early_stopping_keeps_the_best_epoch_before_patience_ends() -> None:
    run = clean("c100", 0, epochs=10)  # the patience is 3 epochs
    assert run.early_stop([0.1, 0.3, 0.2, 0.3, 0.1, 0.4]) == (2, True)  # an equal accuracy is no improvement
    assert run.early_stop([0.1, 0.3, 0.2, 0.3]) == (2, False)
    assert run.early_stop([0.1, 0.3, 0.2, 0.2, 0.4, 0.1]) == (5, False)
    assert run.early_stop([]) == (1, False)
    assert clean("c10", 0, epochs=10).early_stop([0.9, *[0.1] * 9]) == (1, False)  # Adam does not stop early


def test_equal_trainings_have_one_name() -> None:
    assert noise("c10", (0, 4), 0.0, 1) == clean("c10", 1)
    assert under("c10", (0, 4), 1.0, 1) == clean("c10", 1) == sample("c10", 1.0, 1)
    assert noise("c10", (0, 9), 0.3, 1) == noise("c10", None, 0.3, 1)


@pytest.mark.parametrize(
    "name",
    ["", "c10", "c10-clean", "c10-noise-0-4-s0", "c10-clean-s0-x", "c10-noise-0-4-r.3-s0", "../c10-clean-s0"],
)
def test_malformed_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="name must look like"):
        parse(name)


@pytest.mark.parametrize(
    "name", ["c10-noise-0-4-r0.3-s0", "c10-clean-s0-e200", "c10-clean-s00", "c10-noise-0-9-r0.30-s0"]
)
def test_names_that_are_not_canonical_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="name must be canonical"):
        parse(name)


def test_paper_recipes() -> None:
    adam, sgd = clean("c10", 0), clean("c100", 0)
    assert (adam.network, adam.epochs, adam.batch_size, adam.weight_decay) == ("resnet20", 200, 128, 2e-4)
    assert adam.schedule == ((1, 1e-3), (81, 1e-4))
    assert (sgd.network, sgd.epochs, sgd.weight_decay) == ("wrn28x10", 200, 5e-4)
    assert sgd.schedule == ((1, 0.1), (61, 0.02), (121, 0.004), (161, 0.0008))
    assert [sgd.phase(epoch) for epoch in (60, 61, 200)] == [(1, 0.1), (2, 0.02), (4, 0.0008)]


def test_learning_rate_drops_scale_with_the_epochs() -> None:
    assert clean("c100", 0, epochs=100).schedule == ((1, 0.1), (31, 0.02), (61, 0.004), (81, 0.0008))
    assert clean("c10", 0, epochs=1).schedule == ((1, 1e-4),)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": "mnist"}, "data must be one of c10, c100"),
        ({"kind": "odd"}, "kind must be one of"),
        ({"recipe": "odd"}, "recipe must be one of"),
        ({"rate": None}, "kind must agree with rate"),
        ({"per_class": 5}, "kind must agree with rate"),
        ({"rate": 0.0}, r"rate must be in \(0, 1\]"),
        ({"rate": 1.5}, r"rate must be in \(0, 1\]"),
        ({"kind": "under", "rate": 1.0}, "use clean"),
        ({"classes": (3, 10)}, r"classes must be .* 0\.\.9"),
        ({"classes": (4, 3)}, r"classes must be .* 0\.\.9"),
        ({"kind": "clean", "rate": None}, "for noise and under-sampling, a pair"),
        ({"kind": "few", "rate": None, "per_class": 0, "classes": None}, "per_class must be 1 or more"),
        ({"seed": -1}, "seed must be 0 or more"),
        ({"epochs": 0}, "epochs must be 1 or more"),
        ({"batch_size": 1}, "batch_size must be 2 or more"),
        ({"weight_decay": -1.0}, "weight_decay must be 0 or more"),
    ],
)
def test_impossible_runs_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(noise("c10", (0, 4), 0.3, 0), **change)


def test_incomplete_dictionaries_are_refused() -> None:
    with pytest.raises(ValueError, match="extra fields seed"):
        Run.from_dict({k: v for k, v in clean("c10", 0).to_dict().items() if k != "seed"})


def test_grid_has_every_seed_of_every_point() -> None:
    for points in runs.paper_grid().values():
        assert len({run.name for run in points}) == len(points)
        first = [run for run in points if run.seed == 0]
        assert {replace(run, seed=0) for run in points} == set(first)
        assert len(points) == len(first) * len(runs.SEEDS)


def test_items_of_a_run() -> None:
    assert runs.items_of("c10-noise-0-4-r0.30-s0") == {"table2", "fig10", "fig11"}
    assert runs.items_of("c10-clean-s9") == frozenset()


def test_grid_points() -> None:
    names = {name: [run.name for run in runs.runs_for(name) if run.seed == 0] for name in runs.paper_grid()}
    assert names["table2"] == names["fig11"] == ["c10-noise-0-4-r0.30-s0"]
    assert names["fig9"] == ["c10-clean-s0", "c10-noise-all-r0.30-s0", "c10-few-n100-s0"]
    assert names["fig12"] == [*(f"c10-under-all-r{r}-s0" for r in ("0.02", "0.10", "0.40")), "c10-clean-s0"]
    assert names["fig13"] == ["c10-under-0-4-r0.06-s0"]
    assert [parse(name).rate for name in names["fig10"]] == [None, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9]
    assert [parse(name).rate for name in names["fig14"]] == [0.01, 0.03, 0.06, 0.1, 0.3, 0.6, None]
    assert names["table1"] == names["fig3"] == names["fig6"] == ["c100-noise-0-49-r0.30-s0"]
    assert names["fig4"] == ["c100-under-0-49-r0.10-s0"]
    assert names["fig7"] == ["c100-under-0-49-r0.05-s0"]
    short = "s0-net_resnet20-opt_adam-e100"
    assert names["fig5"][:2] == [f"c100-clean-{short}", f"c100-noise-0-49-r0.10-{short}"]
    assert names["fig8"][::4] == [f"c100-under-0-49-r0.05-{short}", f"c100-clean-{short}"]
    with pytest.raises(ValueError, match=r'name must be one of .*, got "table3"'):
        runs.runs_for("table3")


def test_the_recipe_determines_the_choice_of_epoch() -> None:
    assert clean("c10", 0).choice == "best"
    assert clean("c100", 0).choice == "early"
    assert clean("c100", 0, recipe="adam").choice == "best"


def test_the_grid_needs_no_torch() -> None:
    code = "import sys, hetcal_paper.runs as r; r.paper_grid(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
