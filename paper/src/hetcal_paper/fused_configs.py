"""Launch parameters of the Triton kernels, and the launch; nothing here imports Triton before it is used."""

from __future__ import annotations

from functools import cache
from typing import Any

__all__ = ["CONFIGS", "COPIES", "grid_of", "launch"]

#: Copies of each sum; programs that add to different copies do not wait for each other.
COPIES = 8

#: By kernel and (channels in, channels out), found by timing on an H200: ``BLOCK`` pixels (images,
#: elements) a program and its warps; where they apply, the ``WINDOW`` of pixels read as one, the
#: ``ROWS`` of the 3 by 3 kernel that a program does, and the ``shares`` that the pixels are dealt into.
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
    """Programs of a launch over ``items`` (pixels, images or elements), or over shares where it is None."""
    config = CONFIGS[name][key]
    programs = config.get("shares") or 1 if items is None else -(-items // config.get("BLOCK", 1))
    if name == "weight_gradient":  # in front: the taps of the kernel that one program does not do
        windows = 1 if config["WINDOW"] == 4 else 3
        return (1 if config["ROWS"] == 3 else 3 * windows, programs)
    if name == "conv_backward_strided":  # behind: parities of row and column
        return (programs, 4)
    return (programs,)


def launch(name: str, key: tuple[int, int], items: int | None, *args: Any, **constants: Any) -> None:
    """Launch a kernel on the current stream; ``items`` as in :func:`grid_of`."""
    config = {option: value for option, value in CONFIGS[name][key].items() if option != "shares"}
    _kernel(name)[grid_of(name, key, items)](*args, **constants, **config)


@cache
def _kernel(name: str) -> Any:
    """Import a kernel when it is first launched: Triton comes only with a GPU build of torch."""
    from hetcal_paper import fused_backward_kernels, fused_kernels

    return getattr(fused_kernels if name in fused_kernels.__all__ else fused_backward_kernels, name)
