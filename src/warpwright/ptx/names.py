"""Names of kernels as people read them: C++ names from the mangled ones in PTX."""

from __future__ import annotations

import ctypes
import functools

__all__ = ["demangle", "kernel_name", "shorten_name"]

LONGEST = 60  # characters of a C++ name


def kernel_name(name: str) -> str:
    """Returns the name of a kernel for messages and tables: a C++ name demangled and without its parameters."""
    return shorten_name(demangle(name)) if name.startswith("_Z") else name


@functools.cache
def demangle(name: str) -> str:
    """Returns the C++ name of a mangled one; other names, and all where libstdc++ is missing, as they are."""
    if not name.startswith("_Z"):
        return name
    try:
        function = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
    except OSError:
        return name
    function.restype = ctypes.c_void_p
    status = ctypes.c_int()
    found = function(name.encode(), None, None, ctypes.byref(status))
    if not found:
        return name
    text = ctypes.string_at(found).decode()
    ctypes.CDLL(None).free(ctypes.c_void_p(found))
    return text


def shorten_name(name: str) -> str:
    """Returns a C++ name without its return type and its parameters, cut to 60 characters."""
    depth, end = 0, len(name)
    for at, sign in enumerate(name):
        depth += (sign == "<") - (sign == ">")
        if sign == "(" and not depth and not name.startswith("(anonymous", at):
            end = at
            break
    text = name[:end].removeprefix("void ")
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
