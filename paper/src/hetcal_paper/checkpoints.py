"""What a run under way needs to resume, in ``NAME.ckpt`` of the store."""

from __future__ import annotations

import io
import logging
from pathlib import Path
from typing import Any

import torch

from hetcal._write import write_atomic
from hetcal_paper.runs import Run
from hetcal_paper.store import checkpoint_path

__all__ = ["read_checkpoint", "write_checkpoint"]

_LOG = logging.getLogger(__name__)


def write_checkpoint(folder: Path, name: str, state: dict[str, Any]) -> None:
    """Write the state of a run; not forced to disk, since its loss costs time only."""
    path = checkpoint_path(folder, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()  # torch, if it wrote to the file itself, would hide why it could not
    torch.save(state, content)
    write_atomic(path, lambda sink: sink.write(content.getbuffer()), durable=False)


def read_checkpoint(folder: Path, run: Run) -> dict[str, Any] | None:
    """Read the state of a run; None if there is none, or none that can be read."""
    path = checkpoint_path(folder, run.name)
    if not path.is_file():
        return None
    content = io.BytesIO(path.read_bytes())
    try:
        state: dict[str, Any] = torch.load(content, map_location="cpu", weights_only=True)
        owner = state["run"]
    except Exception:  # torch has many for a file that is cut short
        _LOG.warning("%s is damaged; %s starts from the beginning", path, run.name)
        return None
    if owner != run.to_dict():
        raise ValueError(f"{path} must belong to {run.name}, got {owner}; delete the file")
    return state
