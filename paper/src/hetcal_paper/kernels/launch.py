"""Launch the Triton kernels with tuned parameters. Triton is imported at the first launch."""

from __future__ import annotations

from functools import cache
from typing import Any

__all__ = ["CONFIGS", "COPIES", "grid_of", "launch"]

#: Number of copies of each sum that batch norm needs. Programs of a kernel add to different copies, so they
#: rarely compete for an address.
COPIES = 8

#: Launch parameters by kernel and (input channels, output channels), tuned on an H200. Where a kernel has no
#: such number of channels, the key contains 0. ``BLOCK`` is the number of pixels (or elements) that a program
#: processes at once, ``WINDOW`` the number of neighbouring pixels that it reads at once, and ``ROWS`` the
#: number of rows of the 3 by 3 filter that it handles. ``shares`` is the number of programs among which the
#: pixels are divided.
CONFIGS: dict[str, dict[tuple[int, int], dict[str, int]]] = {
    "adam": {
        (0, 0): {"BLOCK": 512, "num_warps": 4},
    },
    "add_shortcut": {
        (16, 16): {"BLOCK": 128, "num_warps": 4},
        (32, 32): {"BLOCK": 64, "num_warps": 4},
        (64, 64): {"BLOCK": 16, "num_warps": 2},
    },
    "conv_backward": {
        (16, 16): {"BLOCK": 256, "num_warps": 4, "WINDOW": 4, "num_stages": 1},
        (32, 32): {"BLOCK": 128, "num_warps": 4, "WINDOW": 4, "num_stages": 1},
        (64, 64): {"BLOCK": 64, "num_warps": 4, "WINDOW": 1, "num_stages": 1},
    },
    "conv_backward_strided": {
        (16, 32): {"BLOCK": 128, "num_warps": 4},
        (32, 64): {"BLOCK": 64, "num_warps": 2},
    },
    "conv_forward": {
        (16, 16): {"BLOCK": 128, "num_warps": 4, "WINDOW": 1, "num_stages": 1},
        (16, 32): {"BLOCK": 128, "num_warps": 4, "WINDOW": 4, "num_stages": 1},
        (32, 32): {"BLOCK": 64, "num_warps": 4, "WINDOW": 1, "num_stages": 1},
        (32, 64): {"BLOCK": 64, "num_warps": 8, "WINDOW": 4, "num_stages": 1},
        (64, 64): {"BLOCK": 32, "num_warps": 4, "WINDOW": 1, "num_stages": 1},
    },
    "head": {
        (64, 0): {"num_warps": 4},
    },
    "projection_gradient": {
        (16, 32): {"BLOCK": 256, "num_warps": 4, "shares": 64, "num_stages": 1},
        (32, 64): {"BLOCK": 64, "num_warps": 4, "shares": 64, "num_stages": 1},
    },
    "stem_forward": {
        (3, 16): {"BLOCK": 256, "num_warps": 4},
    },
    "stem_gradient": {
        (3, 16): {"BLOCK": 256, "num_warps": 4, "shares": 264, "num_stages": 1},
    },
    "weight_gradient": {
        (16, 16): {"BLOCK": 128, "num_warps": 4, "WINDOW": 4, "ROWS": 3, "num_stages": 1, "shares": 264},
        (16, 32): {"BLOCK": 128, "num_warps": 4, "WINDOW": 4, "ROWS": 1, "num_stages": 1, "shares": 88},
        (32, 32): {"BLOCK": 128, "num_warps": 4, "WINDOW": 4, "ROWS": 1, "num_stages": 1, "shares": 88},
        (32, 64): {"BLOCK": 64, "num_warps": 8, "WINDOW": 4, "ROWS": 1, "num_stages": 1, "shares": 44},
        (64, 64): {"BLOCK": 128, "num_warps": 4, "WINDOW": 1, "ROWS": 1, "num_stages": 1, "shares": 28},
    },
}


def grid_of(name: str, key: tuple[int, int], items: int | None) -> tuple[int, ...]:
    """Return the grid of a launch.

    ``name`` and ``key`` select an entry of :data:`CONFIGS`. ``items`` is the number of pixels, images or
    elements to divide into blocks. If it is None, the pixels are divided among ``shares`` programs, as stated
    in the entry.
    """
    config = CONFIGS[name][key]
    programs = config.get("shares") or 1 if items is None else -(-items // config.get("BLOCK", 1))
    if name == "weight_gradient":  # the first axis divides the 3 by 3 filter among programs
        windows = 1 if config["WINDOW"] == 4 else 3
        return (1 if config["ROWS"] == 3 else 3 * windows, programs)
    if name == "conv_backward_strided":  # the second axis selects even or odd rows and columns
        return (programs, 4)
    return (programs,)


def launch(name: str, key: tuple[int, int], items: int | None, *args: Any, **constants: Any) -> None:
    """Launch a kernel on the current stream; :func:`grid_of` describes ``name``, ``key`` and ``items``."""
    config = {option: value for option, value in CONFIGS[name][key].items() if option != "shares"}
    _kernel(name)[grid_of(name, key, items)](*args, **constants, **config)


@cache
def _kernel(name: str) -> Any:
    """Import a kernel at its first launch, because only GPU builds of PyTorch include Triton."""
    from hetcal_paper.kernels import backward, forward

    return getattr(forward if name in forward.__all__ else backward, name)
