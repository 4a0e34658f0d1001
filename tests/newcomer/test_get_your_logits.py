"""Every section of docs/get-your-logits.md gives the scores of the model, with the real packages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from readers import READERS, sections

IS_SLOW = bool(os.environ.get("HETCAL_SLOW_DOCS"))


@pytest.mark.parametrize("section", READERS)
def test_section(section: str, tmp_path: Path) -> None:
    packages = READERS[section].packages
    if packages and not IS_SLOW:
        pytest.skip(f"needs {', '.join(packages)}, which `make docs` installs")
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "KERAS_BACKEND": "torch", "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, str(Path(__file__).with_name("readers.py")), section]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr


def test_every_section_with_code_has_a_reader() -> None:
    assert set(sections()) == set(READERS)
