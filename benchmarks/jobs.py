"""Jobs that run in a process of their own: ``python benchmarks/jobs.py NAME OPTIONS-AS-JSON``.

The result is printed as JSON on the last line. Jobs import what they need themselves, so that their time
includes the imports.
"""

import json
import sys
import time

_STARTED = time.perf_counter()


def first_call(folder: str) -> dict:
    """Return the time from the first line of this file to a fitted calibrator, without loading the rows."""
    import numpy as np

    before = time.perf_counter()
    z, y = np.load(f"{folder}/logits.npy"), np.load(f"{folder}/labels.npy")
    loaded = time.perf_counter() - before
    import hetcal

    hetcal.ClassWiseTemperatureScaling().fit(z, y)
    return {"seconds": time.perf_counter() - _STARTED - loaded, "numba": "numba" in sys.modules}


def memory(folder: str, method: str) -> dict:
    """Return the peak memory of a fit, not counting its input, after all code is loaded."""
    import numpy as np
    from methods import METHODS

    rng = np.random.default_rng(0)
    shape = np.load(f"{folder}/logits.npy", mmap_mode="r").shape
    rows = max(2, (5 << 20) // shape[1])  # a small problem that is large enough for compiled code
    small = rng.standard_normal((rows, shape[1]), dtype=np.float32)
    METHODS[method](small, rng.integers(shape[1], size=rows))
    del small
    z, y = np.load(f"{folder}/logits.npy"), np.load(f"{folder}/labels.npy")
    _release_memory()
    before = _resident()
    _reset_peak()
    started = time.perf_counter()
    METHODS[method](z, y)
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "bytes": max(0, _peak() - before), "input": z.nbytes + y.nbytes}


def mapped(folder: str) -> dict:
    """Fit on memory-mapped files."""
    import numpy as np

    import hetcal

    z, y = (np.load(f"{folder}/{name}.npy", mmap_mode="r") for name in ("logits", "labels"))
    started = time.perf_counter()
    model = hetcal.ClassWiseTemperatureScaling().fit(hetcal.Batches(z, y))
    return {"seconds": time.perf_counter() - started, "peak": _peak(), "alpha": model.alpha_.tolist()}


def in_memory(folder: str) -> dict:
    """Run the same fit on arrays in memory."""
    import numpy as np

    import hetcal

    z, y = np.load(f"{folder}/logits.npy"), np.load(f"{folder}/labels.npy")
    hetcal.ClassWiseTemperatureScaling().fit(z[: (5 << 20) // z.shape[1]], y[: (5 << 20) // z.shape[1]])
    started = time.perf_counter()
    model = hetcal.ClassWiseTemperatureScaling().fit(z, y)
    return {"seconds": time.perf_counter() - started, "alpha": model.alpha_.tolist()}


def netcal_vector(folder: str) -> dict:
    """Fit netcal's vector scaling, which may take very long."""
    import numpy as np
    import peers

    z, y = np.load(f"{folder}/logits.npy"), np.load(f"{folder}/labels.npy")
    with peers.quiet():
        fit = peers.netcal_vector(z, y)
        started = time.perf_counter()
        probs = fit()
        seconds = time.perf_counter() - started
        loss = -np.log(probs()[np.arange(len(y)), y]).mean()
    return {"seconds": seconds, "nll": float(loss)}


def cluster(folder: str, kill: bool = False, delay: float = 0.0) -> dict:
    """Fit on two worker processes. With `kill`, one is killed `delay` seconds after the fit starts."""
    from on_dask import fit_on_cluster

    return fit_on_cluster(folder, kill, delay)


def _status(name: str) -> int:
    with open("/proc/self/status", encoding="ascii") as file:  # noqa: PTH123  # importing pathlib takes time
        return next(1024 * int(line.split()[1]) for line in file if line.startswith(name))


def _resident() -> int:
    return _status("VmRSS")


def _peak() -> int:
    return _status("VmHWM")


def _reset_peak() -> None:
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:  # noqa: PTH123
        file.write("5")


def _release_memory() -> None:
    """Return freed memory to the operating system, so that it does not count as used."""
    import contextlib
    import ctypes
    import gc

    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


JOBS = {job.__name__: job for job in (first_call, memory, mapped, in_memory, netcal_vector, cluster)}

if __name__ == "__main__":
    print(json.dumps(JOBS[sys.argv[1]](**json.loads(sys.argv[2]))))
