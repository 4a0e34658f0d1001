"""The pickles of CIFAR's python layout, read as data.

An unpickler calls what the file names. This reader goes through the instructions of the file and knows only
those that make numbers, text, containers and arrays of bytes, which it makes itself: nothing is imported or
called by name, so that a hostile file can be no worse than a damaged one.
"""

from __future__ import annotations

import math
import pickletools  # nosec B403 - it takes pickles apart and runs nothing
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["read_plain"]

_MARK = object()


class _Name(str):
    """A module's thing that the file names, such as ``numpy ndarray``."""

    __slots__ = ()


class _Call(NamedTuple):
    """What the file asks to call; never called."""

    name: str
    arguments: tuple[Any, ...]


_RECONSTRUCT = ("numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct")
_ENCODE = "_codecs encode"  # how Python 3 writes bytes for Python 2
_NAMES = {*_RECONSTRUCT, _ENCODE, "numpy ndarray", "numpy dtype"}
_BYTE = {"u1", "|u1", b"u1", b"|u1"}


def read_plain(content: bytes, what: str) -> Any:
    """Containers, numbers, text and arrays of bytes of a pickle; `what` is what messages call it."""
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    try:
        for code, argument, _ in pickletools.genops(content):
            _step(code.name, argument, stack, memo)
        (result,) = stack
    except (ValueError, LookupError, TypeError, AttributeError, MemoryError, OverflowError) as error:
        raise ValueError(
            f"{what} must contain only arrays and built-in types, got {error or type(error).__name__}; "
            "it is not an official CIFAR file, or damaged: fetch the data again"
        ) from None
    return result


def _step(code: str, argument: Any, stack: list[Any], memo: dict[int, Any]) -> None:
    """Follow one instruction."""
    if code in _VALUES:
        stack.append(argument)
    elif code in _EMPTY:
        stack.append(_EMPTY[code]())
    elif code in _ACTIONS:
        _ACTIONS[code](stack)
    elif code in _STRINGS:  # Python 2's, which are bytes
        stack.append(argument.encode("latin-1"))
    elif code in _PUT:
        memo[len(memo) if argument is None else argument] = stack[-1]
    elif code in _GET:
        stack.append(memo[argument])
    elif code == "GLOBAL":
        stack.append(_named(argument))
    elif code not in _IDLE:
        raise ValueError(f"the instruction {code}")


def _named(name: str) -> _Name:
    if name not in _NAMES:
        raise ValueError(name.replace(" ", "."))
    return _Name(name)


def _since_mark(stack: list[Any]) -> list[Any]:
    """Take what lies above the last mark, and the mark."""
    items = []
    while (item := stack.pop()) is not _MARK:
        items.append(item)
    return items[::-1]


def _pack(n: int) -> Callable[[list[Any]], None]:
    def act(stack: list[Any]) -> None:
        stack[-n:] = [tuple(stack[-n:])]

    return act


def _append(stack: list[Any]) -> None:
    item = stack.pop()
    stack[-1].append(item)


def _extend(stack: list[Any]) -> None:
    items = _since_mark(stack)
    stack[-1].extend(items)


def _set(stack: list[Any]) -> None:
    value, key = stack.pop(), stack.pop()
    stack[-1][key] = value


def _update(stack: list[Any]) -> None:
    items = _since_mark(stack)
    stack[-1].update(zip(items[::2], items[1::2], strict=True))


def _reduce(stack: list[Any]) -> None:
    arguments, name = stack.pop(), stack.pop()
    if not isinstance(name, _Name) or not isinstance(arguments, tuple):
        raise ValueError("a call of something without a name")
    if name == _ENCODE:
        text, how = arguments
        if how != "latin1":
            raise ValueError(f"text as {how!r}")
        stack.append(text.encode("latin-1"))
    else:
        stack.append(_Call(name, arguments))


def _build(stack: list[Any]) -> None:
    """Make the array; what is said of the type of bytes adds nothing to its name."""
    state = stack.pop()
    if not isinstance(stack[-1], _Call):
        raise ValueError("a state of something that is no array")
    if stack[-1].name in _RECONSTRUCT:
        stack[-1] = _array(state)


def _array(state: Any) -> NDArray[np.uint8]:
    _, shape, kind, by_columns, raw = state
    if not isinstance(kind, _Call) or kind.name != "numpy dtype" or kind.arguments[0] not in _BYTE:
        raise ValueError("an array of something other than bytes")
    if not isinstance(raw, bytes) or len(raw) != math.prod(shape):
        raise ValueError(f"an array of shape {shape} with another number of bytes")
    return np.frombuffer(raw, np.uint8).reshape(shape, order="F" if by_columns else "C")


_VALUES = {
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "UNICODE",
    "BINUNICODE", "SHORT_BINUNICODE", "BINBYTES", "SHORT_BINBYTES",
}  # fmt: skip
_STRINGS = {"STRING", "BINSTRING", "SHORT_BINSTRING"}
_EMPTY: dict[str, Callable[[], Any]] = {
    "EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple, "MARK": lambda: _MARK,
    "NONE": lambda: None, "NEWTRUE": lambda: True, "NEWFALSE": lambda: False,
}  # fmt: skip
_PUT = {"PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"}
_GET = {"GET", "BINGET", "LONG_BINGET"}
_IDLE = {"PROTO", "FRAME", "STOP"}
_ACTIONS: dict[str, Callable[[list[Any]], None]] = {
    "TUPLE": lambda stack: stack.append(tuple(_since_mark(stack))),
    "LIST": lambda stack: stack.append(_since_mark(stack)),
    "TUPLE1": _pack(1),
    "TUPLE2": _pack(2),
    "TUPLE3": _pack(3),
    "APPEND": _append,
    "APPENDS": _extend,
    "SETITEM": _set,
    "SETITEMS": _update,
    "REDUCE": _reduce,
    "BUILD": _build,
    "STACK_GLOBAL": lambda stack: stack.append(_named(" ".join((stack.pop(-2), stack.pop())))),
}
