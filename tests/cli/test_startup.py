"""What the command line imports, checked in a new process."""

from __future__ import annotations

import subprocess
import sys


def test_the_command_line_starts_without_packages_that_compute() -> None:
    code = "import sys, hetcal.cli; print(*sys.modules)"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(process.stdout.split())
    assert not {"numpy", "scipy", "sklearn", "pandas", "matplotlib"} & loaded
