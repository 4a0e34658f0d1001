"""Tests for mutants: which of them reach which line, how long each takes, and whether they notice a fault."""

from __future__ import annotations

import gc
import hashlib
import importlib
import importlib.abc
import importlib.util
import json
import os
import resource
import signal
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

__all__ = ["Swap", "forked", "in_session", "load_libraries", "map_tests", "passes", "passes_from_scratch"]

FILES = [
    *("tests/_core/test_balls.py", "tests/_core/test_hierarchy.py", "tests/_core/test_kernels.py"),
    *("tests/_core/test_solvers.py", "tests/_core/test_temperature.py", "tests/_core/test_batches.py"),
    "tests/_core/test_tensors.py",
    *("tests/metrics", "tests/calibrators", "tests/test_partition.py"),
]
PYTEST = [
    *("-q", "-o", "addopts=", "--import-mode=importlib", "--strict-markers", "-x", "-s", "--tb=short"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # libraries are loaded before
    *("-p", "no:cacheprovider", "-p", "no:xdist"),
    "--ignore=tests/calibrators/test_sklearn.py",  # scikit-learn's own long list
]
LIBRARIES = [
    *("hypothesis.extra.numpy", "scipy.optimize", "scipy.stats", "scipy.fft", "scipy.special"),
    *("sklearn.isotonic", "sklearn.linear_model", "sklearn.utils.estimator_checks", "threadpoolctl"),
    *("torchmetrics.functional.classification", "relplot", "pandas", "numba", "scipy.sparse"),
]
MEMORY = 12 << 30
WALL = 1800  # seconds after which even a process that only waits is ended


def load_libraries() -> None:
    """Load once what every process needs, and none of hetcal."""
    import hypothesis

    for name in LIBRARIES:
        importlib.import_module(name)
    # A failing example need not be the smallest one, and a busy machine is no failure.
    quick = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
    hypothesis.settings.register_profile(
        "mutation", deadline=None, derandomize=True, database=None, phases=quick
    )
    hypothesis.settings.load_profile("mutation")


def forked(action: Callable[[], int], seconds: float | None = None) -> int:
    """Process id of a copy of this process that runs `action` and exits with what it returns.

    With `seconds` it is silent, and ended by signal after so much processor time.
    """
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        if seconds is not None:
            _confine(int(seconds))
        code = action()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def in_session(action: Callable[[list[pytest.Item]], object]) -> None:
    """Run `action` on the collected tests, in a process that has them and hetcal loaded."""
    pid = forked(lambda: int(pytest.main([*PYTEST, *FILES], plugins=[_Instead(action)])))
    _, status = os.waitpid(pid, 0)
    if status:
        raise SystemExit("the tests must pass before mutants can be judged by them; see above")


def passes(items: Sequence[pytest.Item], clock: Callable[[str, float], None] | None = None) -> bool:
    """Whether the tests pass, up to the first that fails."""
    for item, after in zip(items, [*items[1:], None], strict=True):
        start = time.process_time()
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
        if item.session.testsfailed:
            return False
        if clock is not None:
            clock(item.nodeid, time.process_time() - start)
    return True


def map_tests(path: Path, sources: Sequence[Path]) -> None:
    """Run the tests under coverage; write processor seconds of each, and tests by module and line.

    While the sources stay as they are, tests that the map in `path` has already are not run again.
    """
    state = hashlib.sha256(b"".join(file.read_bytes() for file in sources)).hexdigest()
    known = json.loads(path.read_text("utf-8")) if path.exists() else {}
    if known.get("sources") != state:
        known = {"sources": state, "seconds": {}, "lines": {}}
    seconds: dict[str, float] = known["seconds"]

    def measure(items: list[pytest.Item]) -> None:
        import coverage

        new = [item for item in items if item.nodeid not in seconds]
        if not new:
            return
        tracer = coverage.Coverage(data_file=None, include=[str(file) for file in sources], config_file=False)
        tracer.start()
        for item in new:
            tracer.switch_context(item.nodeid)
            if not passes([item], seconds.__setitem__):
                raise pytest.UsageError(f"{item.nodeid} fails")
        tracer.stop()
        for file in sources:
            lines = known["lines"].setdefault(f"{file.parent.name}.{file.stem}", {})
            for line, names in tracer.get_data().contexts_by_lineno(str(file)).items():
                lines[str(line)] = sorted({*lines.get(str(line), ()), *filter(None, names)})
        path.write_text(json.dumps(known), "utf-8")

    in_session(measure)


class Swap:
    """Puts a mutant's code into the functions of a loaded hetcal, so that nothing need be loaded again."""

    def __init__(self, files: Sequence[Path]) -> None:
        made: dict[tuple[str, str, int], list[FunctionType]] = defaultdict(list)
        for some in gc.get_objects():
            if type(some) is FunctionType and str(some.__module__).startswith("hetcal."):
                code = some.__code__
                made[code.co_filename, code.co_qualname, code.co_firstlineno].append(some)
        self.functions: dict[Path, dict[tuple[str, int], list[FunctionType]]] = {}
        for file in files:
            codes = _codes(compile(file.read_text("utf-8"), str(file), "exec", dont_inherit=True))
            keys = {key: (str(file), code.co_qualname, code.co_firstlineno) for key, code in codes.items()}
            self.functions[file] = {key: made[place] for key, place in keys.items() if place in made}

    def apply(self, file: Path, source: str) -> None:
        """Change the functions; ValueError where a closure has other variables than before."""
        codes = _codes(compile(source, str(file), "exec", dont_inherit=True))
        for key, functions in self.functions[file].items():
            for function in functions:
                if key in codes:
                    function.__code__ = codes[key]


def passes_from_scratch(module: str, source: str, file: Path, tests: Sequence[str]) -> int:
    """0 where all tests pass with this source in the module's place; hetcal must not be loaded yet."""
    sys.meta_path.insert(0, _Replaced(module, source, file))
    sys.dont_write_bytecode = True
    files = sorted({name.split("::")[0] for name in tests})
    return int(pytest.main([*PYTEST, *files], plugins=[_Chosen(tests)]))


def _confine(seconds: int) -> None:
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    used = int(time.process_time())
    resource.setrlimit(resource.RLIMIT_CPU, (used + seconds, used + seconds + 5))
    signal.alarm(WALL)


def _codes(module: CodeType) -> dict[tuple[str, int], CodeType]:
    """Code objects in a module's by name, and number among those of the same name."""
    found: dict[tuple[str, int], CodeType] = {}
    seen: dict[str, int] = defaultdict(int)

    def walk(code: CodeType) -> None:
        for part in code.co_consts:
            if isinstance(part, CodeType):
                found[part.co_qualname, seen[part.co_qualname]] = part
                seen[part.co_qualname] += 1
                walk(part)

    walk(module)
    return found


class _Instead:
    """Runs something else than all tests."""

    def __init__(self, action: Callable[[list[pytest.Item]], object]) -> None:
        self.action = action

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.action(session.items)
        return True


class _Chosen:
    """Keeps the chosen tests, in their order."""

    def __init__(self, tests: Sequence[str]) -> None:
        self.place = {name: i for i, name in enumerate(tests)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        chosen = [item for item in items if item.nodeid in self.place]
        items[:] = sorted(chosen, key=lambda item: self.place[item.nodeid])


class _Replaced(importlib.abc.MetaPathFinder, importlib.abc.SourceLoader):
    """Finds one module, with another source."""

    def __init__(self, module: str, source: str, file: Path) -> None:
        self.module, self.source, self.file = module, source, file

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:  # noqa: ARG002
        if name != self.module:
            return None
        return importlib.util.spec_from_file_location(name, self.file, loader=self)

    def get_filename(self, fullname: str) -> str:  # noqa: ARG002
        return str(self.file)

    def get_data(self, path: Any) -> bytes:  # noqa: ARG002
        return self.source.encode()
