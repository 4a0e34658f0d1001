from __future__ import annotations

import pytest
import torch
from torch import nn

from hetcal_paper import networks
from hetcal_paper.weights import Functions


def n_parameters(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


def test_resnet20_has_the_size_of_the_keras_example() -> None:
    # Keras counts 274,442 parameters, including 784 biases of convolutions and 1,376 running statistics.
    assert n_parameters(networks.build("resnet20", 10)) == 274_442 - 784 - 1_376


@pytest.mark.parametrize(("n_classes", "size"), [(10, 36_479_194), (100, 36_536_884)])
def test_wide_resnet_has_its_published_size(n_classes: int, size: int) -> None:
    with torch.device("meta"):
        assert n_parameters(networks.NETWORKS["wrn28x10"](n_classes)) == size


@pytest.mark.parametrize("name", ["resnet20", "tiny"])
def test_networks_map_images_to_logits(name: str) -> None:
    network = networks.build(name, 7)
    logits = network(torch.zeros(3, 3, 32, 32))
    assert logits.shape == (3, 7)
    assert logits.dtype == torch.float32


def test_wide_resnet_maps_shapes() -> None:
    with torch.device("meta"):
        assert networks.NETWORKS["wrn28x10"](100)(torch.zeros(2, 3, 32, 32)).shape == (2, 100)


def test_convolutions_use_he_initialisation() -> None:
    network = networks.build("resnet20", 10)
    last = [m for m in network.modules() if isinstance(m, nn.Conv2d)][-1]
    assert last.weight.std().item() == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.02)
    norm = next(m for m in network.modules() if isinstance(m, nn.BatchNorm2d))
    assert norm.weight.eq(1).all()
    assert norm.bias.eq(0).all()
    assert norm.running_mean is not None
    assert norm.running_mean.eq(0).all()
    assert norm.running_var is not None
    assert norm.running_var.eq(1).all()


def test_weights_depend_only_on_the_generator() -> None:
    before = torch.get_rng_state()
    first, second = (networks.build("tiny", 10, torch.Generator().manual_seed(5)) for _ in range(2))
    other = networks.build("tiny", 10, torch.Generator().manual_seed(6))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not torch.equal(next(first.parameters()), next(other.parameters()))
    assert torch.equal(before, torch.get_rng_state())


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match=r'network must be one of .*, got "vgg"'):
        networks.build("vgg", 10)
    with pytest.raises(ValueError, match="n_classes must be 2 or more, got 1"):
        networks.build("tiny", 1)


def test_functions_of_an_unknown_network_are_refused() -> None:
    with pytest.raises(ValueError, match="network"):
        Functions("vgg", 10, compiled=False)
