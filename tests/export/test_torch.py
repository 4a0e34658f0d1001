"""The PyTorch modules: loaders, modes, state, compilation and errors."""

from __future__ import annotations

import numpy as np
import pytest

import hetcal

torch = pytest.importorskip("torch")

from hetcal.export import maps  # noqa: E402
from hetcal.export import torch as torch_export  # noqa: E402
from hetcal.torch import CalibratedModel, Calibration, collect_logits, fit_from_loader, logits_of  # noqa: E402


class Net(torch.nn.Module):
    """A network with a layer that behaves differently in training."""

    def __init__(self, k=4):
        super().__init__()
        self.layer, self.drop = torch.nn.Linear(6, k), torch.nn.Dropout(0.9)

    def forward(self, x):
        return self.drop(self.layer(x))


class Output:
    def __init__(self, logits):
        self.logits = logits


class Transformer(Net):
    """Takes named inputs and returns an object with logits, as models of transformers do."""

    def forward(self, input_ids=None, attention_mask=None):
        return Output(super().forward(input_ids * attention_mask))


@pytest.fixture
def data():
    torch.manual_seed(0)
    x = torch.randn(900, 6)
    net = Net()
    y = torch.distributions.Categorical(logits=0.5 * net.eval()(x)).sample()
    return net, x, y


def loader(x, y, size=128):
    return [(x[i : i + size], y[i : i + size]) for i in range(0, len(x), size)]


def test_fit_from_loader(data):
    net, x, y = data
    net.train()
    model = fit_from_loader(net, loader(x, y), hetcal.TemperatureScaling(), progress=False)
    assert net.training  # the mode is restored
    net.eval()
    expected = hetcal.TemperatureScaling().fit(net(x).detach().numpy(), y.numpy())
    np.testing.assert_allclose(
        model.eval().predict_proba(x).detach().numpy(),
        expected.predict_proba(net(x).detach().numpy()),
        atol=1e-6,
    )


class Merging(torch.nn.Linear):
    """A layer that changes with its mode."""

    def train(self, mode=True):
        super().train(mode)
        self.merged = not mode
        return self


def test_modes_are_restored_with_the_method_of_the_module():
    network = torch.nn.Sequential(Merging(2, 3)).train()
    batches = [(torch.randn(8, 2), torch.arange(8) % 3)]
    collect_logits(network, batches, progress=False)
    assert network[0].training
    assert not network[0].merged


def test_gradients_beside_equal_knots_are_finite():
    curve = torch_export._Curve(
        maps.Curve(np.array([0.2, 0.5, 0.5]), np.array([0.5, 0.6, 0.9])), torch.float64
    )
    confidence = torch.tensor([0.3, 0.5, 0.7], dtype=torch.float64, requires_grad=True)
    curve.look_up(curve.x, curve.y, confidence).sum().backward()
    assert torch.isfinite(confidence.grad).all()


def test_knots_that_are_equal_in_half_precision():
    z = np.repeat([[0.0, 0.0], [4e-4, 0.0], [2.0, 0.0]], 10, axis=0)
    y = np.array(([0] * 6 + [1] * 4) * 2 + [0] * 9 + [1])
    calibrator = hetcal.calibrators.TopLabelIsotonic().fit(z, y)
    log_p = Calibration(calibrator, dtype=torch.float16)(torch.zeros(1, 2))
    np.testing.assert_allclose(log_p.exp().numpy(), calibrator.predict_proba([[0.0, 0.0]]), atol=1e-3)


@pytest.mark.parametrize("knots", [[0.5, 0.5, 1.0], [0.6, 0.6, 0.9], [0.5, 0.7, 0.7, 0.9], [0.5, 0.8, 0.8]])
def test_repeated_knots_are_those_of_numpy(knots):
    x, y = torch.tensor(knots, dtype=torch.float64), torch.linspace(0.5, 0.9, len(knots), dtype=torch.float64)
    curve = torch_export._Curve(maps.Curve(x.numpy(), y.numpy()), torch.float64)
    confidence = torch.tensor([0.5, 0.55, *knots, 0.65, 0.75, 0.95], dtype=torch.float64)
    expected = np.interp(confidence.numpy(), x.numpy(), y.numpy())
    np.testing.assert_allclose(curve.look_up(x, y, confidence).numpy(), expected, rtol=1e-12)


def test_every_module_keeps_its_mode():
    network = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3)).train()
    network[1].eval()  # a frozen layer
    batches = [(torch.randn(8, 2), torch.arange(8) % 3)]
    collect_logits(network, batches, progress=False)
    assert [module.training for module in network.modules()] == [True, True, False]


def test_default_calibrator_and_progress_bar(data, capsys):
    pytest.importorskip("tqdm")
    net, x, y = data
    model = fit_from_loader(net, loader(x, y)).eval()
    assert "logits" in capsys.readouterr().err
    with torch.no_grad():
        z = net.eval()(x)
        probs = model.predict_proba(x).numpy()
    expected = hetcal.AutoCalibrator().fit(z, y).predict_proba(z.numpy())
    np.testing.assert_allclose(probs, expected, atol=1e-6)


def test_named_inputs_and_outputs(data):
    _, x, y = data
    torch.manual_seed(1)
    net = Transformer().eval()
    batches = [{"input_ids": a, "attention_mask": torch.ones_like(a), "labels": b} for a, b in loader(x, y)]
    model = fit_from_loader(net, batches, hetcal.TemperatureScaling(), progress=False)
    assert model(input_ids=x, attention_mask=torch.ones_like(x)).shape == (900, 4)


def test_mixed_precision(data):
    net, x, y = data
    z, labels = collect_logits(net, loader(x, y), amp=True, progress=False)
    assert z.dtype == torch.float32
    assert labels.tolist() == y.tolist()
    np.testing.assert_allclose(z.numpy(), net(x).detach().numpy(), atol=0.05)
    assert not z.is_inference()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_types_of_logits(data, dtype):
    net, x, y = data
    z = net(x).detach()
    layer = Calibration(hetcal.ClassWiseTemperatureScaling("bayes").fit(z, y))
    p = layer(z.to(getattr(torch, dtype))).exp()
    assert p.dtype == (torch.float64 if dtype == "float64" else torch.float32)
    np.testing.assert_allclose(p.sum(1).numpy(), 1, atol=1e-6)


def test_state_dict_contains_the_calibrator(data):
    net, x, y = data
    z = net(x).detach()
    source = CalibratedModel(net, hetcal.ClassWiseTemperatureScaling().fit(z, y))
    target = CalibratedModel(Net(), hetcal.ClassWiseTemperatureScaling(0.1).fit(z, y))
    assert not torch.equal(source.eval()(x), target.eval()(x))
    target.load_state_dict(source.state_dict())
    assert torch.equal(source(x), target(x))


def test_states_of_earlier_versions_still_load(make_sample):
    z, y, _ = make_sample(200, 3, 0, dtype=np.float32)
    old, new = (Calibration(hetcal.VectorScaling(ridge).fit(z, y)) for ridge in (1e-2, 1.0))
    state = {name: values for name, values in old.state_dict().items() if not name.endswith("theta_rest")}
    assert len(state) < len(old.state_dict())
    new.load_state_dict(state)
    torch.testing.assert_close(new(torch.from_numpy(z)), old(torch.from_numpy(z)))
    old, new = (Calibration(hetcal.TopLabelHistogram(4, kind).fit(z, y)) for kind in ("mass", "width"))
    new.load_state_dict({**old.state_dict(), "map.theta": torch.zeros(1, 0)})
    torch.testing.assert_close(new(torch.from_numpy(z)), old(torch.from_numpy(z)))


def test_compiled(data):
    net, x, y = data
    model = CalibratedModel(net, hetcal.ClassWiseTemperatureScaling().fit(net(x).detach(), y)).eval()
    compiled = torch.compile(model, backend="eager")
    assert torch.equal(compiled(x), model(x))


def test_gradients_flow_to_the_network(data):
    net, x, y = data
    model = CalibratedModel(net, hetcal.PlattScaling().fit(net(x).detach(), y)).eval()
    torch.nn.functional.nll_loss(model(x), y).backward()
    assert torch.isfinite(net.layer.weight.grad).all()
    assert not list(model.calibration.parameters())  # the calibrator itself is not trained


def test_bad_input(data):
    net, x, y = data
    z = net(x).detach()
    layer = Calibration(hetcal.TemperatureScaling().fit(z, y))
    with pytest.raises(ValueError, match=r"logits must .*got \(900, 3\)"):
        layer(z[:, :3])
    with pytest.raises(ValueError, match="groups must"):
        layer(z, torch.zeros(900, dtype=torch.long))
    grouped = Calibration(hetcal.ClassWiseTemperatureScaling().fit(z, y, groups=np.arange(900) % 2))
    assert grouped.group_names == ("0", "1")
    with pytest.raises(ValueError, match="groups must"):
        grouped(z)
    with pytest.raises(TypeError, match=r"calibrator must .*got ClassWise"):
        Calibration(hetcal.ClassWise(hetcal.TopLabelIsotonic()).fit(z, y))
    with pytest.raises(TypeError, match=r"calibrator must .*got builtins\.int"):
        Calibration(3)
    with pytest.raises(ValueError, match="loader must"):
        collect_logits(net, [], progress=False)
    with pytest.raises(TypeError, match="a batch must"):
        collect_logits(net, [x], progress=False)
    with pytest.raises(ValueError, match=r"a batch must .*labels"):
        collect_logits(net, [{"x": x}], progress=False)
    with pytest.raises(TypeError, match="net must"):
        logits_of("text")
    assert logits_of((z, 1)) is z
    assert logits_of({"logits": z}) is z


@pytest.fixture
def segmentation():
    """A network for images, its inputs, and labels of which some are ignored."""
    torch.manual_seed(0)
    net = torch.nn.Conv2d(2, 4, 3, padding=1).eval()
    x = torch.randn(6, 2, 12, 9)
    with torch.no_grad():
        y = torch.distributions.Categorical(logits=net(x).movedim(1, -1)).sample()
    y[:, :, :2] = 255
    return net, x, y


@pytest.mark.parametrize(
    "calibrator", [hetcal.TemperatureScaling(), hetcal.ClassWise(hetcal.PlattScaling(pool=True))], ids=str
)
def test_images(segmentation, calibrator):
    net, x, y = segmentation
    model = fit_from_loader(net, loader(x, y, 2), calibrator, progress=False, ignore_index=255)
    with torch.no_grad():
        logits = net(x)
        log_p = model(x)
    assert log_p.shape == logits.shape
    expected = calibrator.predict_proba(logits)
    np.testing.assert_allclose(log_p.exp(), expected, atol=1e-6)
    np.testing.assert_array_equal(log_p[:, :, 4, 5], model.calibration(logits[:, :, 4, 5]))
    p = model.predict_proba(x)
    np.testing.assert_allclose(p.detach(), expected, atol=1e-6)
    np.testing.assert_array_equal(p.argmax(dim=1), logits.argmax(dim=1))


def test_images_by_group(segmentation):
    net, x, y = segmentation
    logits, groups = net(x).detach(), np.array(["a", "b", "a", "b", "b", "a"])
    model = hetcal.ClassWiseTemperatureScaling().fit(logits, y, groups=groups, ignore_index=255)
    expected, layer = model.predict_proba(logits, groups=groups), Calibration(model)
    positions = torch.tensor([layer.group_names.index(name) for name in groups])
    for index in (positions, positions[:, None, None].expand(6, 12, 9)):
        np.testing.assert_allclose(layer(logits, index).exp(), expected, atol=1e-6)


def test_export_of_a_model_for_images(segmentation):
    net, x, y = segmentation
    model = fit_from_loader(net, loader(x, y, 2), progress=False, ignore_index=255)
    sizes = {0: torch.export.Dim("n", min=2, max=64), 2: torch.export.Dim("height", min=2, max=64)}
    program = torch.export.export(model, (x,), dynamic_shapes={"inputs": (sizes,)}).module()
    for other in (x, torch.randn(3, 2, 20, 9)):
        torch.testing.assert_close(program(other), model(other))


def test_images_with_other_classes(segmentation):
    net, x, y = segmentation
    layer = Calibration(hetcal.TemperatureScaling().fit(net(x).detach(), y, ignore_index=255))
    with pytest.raises(ValueError, match=r"4 classes in dimension 1, .*got shape \(6, 12, 9, 4\)"):
        layer(net(x).movedim(1, -1))
