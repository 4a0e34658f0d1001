"""Stand by with everything imported, and fork a process for each line of words on stdin.

A kill then hits work, not imports, and a hundred of them take minutes. Answers with the process id; asked
again, with how the process ended. With a number the process kills itself at its so-many-th call of the system
from the first draft of a file on; with a zero it writes the number of these calls to a file.
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

CALLS = {"write", "flush", "fsync", "replace", "unlink", "remove", "rmdir", "flock", "dup", "close", "mkdir"}


def work(_: str, *words: str) -> int:
    from hetcal.__main__ import main

    return main(list(words))


def count_calls(kill_at: int) -> list[str]:
    """Begin at the first draft that is opened; the calls so far are in the list."""
    made: list[str] = []

    def look(_: Any, event: str, function: Any) -> None:
        if event == "c_call" and function.__name__ in CALLS:
            made.append(function.__name__)
            if len(made) == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    def listen(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and str(arguments[0]).endswith(".part") and sys.getprofile() is None:
            sys.setprofile(look)

    sys.addaudithook(listen)
    return made


def alone(words: list[str], kill_at: int | None, tally: str) -> None:
    code = 70
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        made = [] if kill_at is None else count_calls(kill_at)
        code = work(*words)
        sys.setprofile(None)
        if kill_at == 0:
            Path(tally).write_text(str(len(made)))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def stand_by() -> None:
    for line in iter(sys.stdin.readline, ""):
        process = os.fork()
        if process == 0:
            alone(*json.loads(line))
        sys.stdout.write(f"{process}\n")
        sys.stdout.flush()
        sys.stdin.readline()
        sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    for module in sys.argv[1:]:
        importlib.import_module(module)
    stand_by()
