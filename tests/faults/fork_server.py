"""Import modules once, then fork a child process for each request on stdin.

Requests are lines of JSON: [arguments, kill_at, tally]. The server answers with the process id of the child
and, after the next line of input, with its exit code. Forking from a process that has imported everything
makes a kill hit the work rather than the imports, and keeps a hundred kills within minutes.

Counting starts when the child opens its first temporary file. If `kill_at` is a positive number, the child
kills itself at that system call. If it is zero, the child writes the number of system calls to the file
`tally`.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

SYSTEM_CALLS = {
    "write", "flush", "fsync", "replace", "unlink", "remove", "rmdir", "flock", "dup", "close", "mkdir",
}  # fmt: skip


def count_calls(kill_at: int) -> list[str]:
    """Return a list that grows with each system call."""
    calls: list[str] = []

    def profile(_: Any, event: str, function: Any) -> None:
        if event == "c_call" and function.__name__ in SYSTEM_CALLS:
            calls.append(function.__name__)
            if len(calls) == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    def start_at_first_draft(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and str(arguments[0]).endswith(".part") and sys.getprofile() is None:
            sys.setprofile(profile)

    sys.addaudithook(start_at_first_draft)
    return calls


def run_child(arguments: list[str], kill_at: int | None, tally: str) -> None:
    from hetcal.__main__ import main

    code = 70
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        calls = [] if kill_at is None else count_calls(kill_at)
        code = main(arguments)
        sys.setprofile(None)
        if kill_at == 0:
            Path(tally).write_text(str(len(calls)))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def serve() -> None:
    for request in iter(sys.stdin.readline, ""):
        child = os.fork()
        if child == 0:
            run_child(*json.loads(request))
        sys.stdout.write(f"{child}\n")
        sys.stdout.flush()
        sys.stdin.readline()
        sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    for module in sys.argv[1:]:
        importlib.import_module(module)
    serve()
