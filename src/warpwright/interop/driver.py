"""The CUDA driver of a virtual GPU for libraries of Python in this process: cuda.core and CuPy.

They find the driver by its name, libcuda.so.1. The library of that name in `warpwright.programs` is loaded before, and
its requests are answered in this process.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import ctypes
import os
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpwright.errors import WarpwrightError
from warpwright.programs.calls import CALLS, Calls
from warpwright.programs.memory import DeviceMemory, memory_of_process
from warpwright.programs.process import DRIVER, driver
from warpwright.run.session import Session

__all__ = ["DRIVER", "opened"]

NO_DEVICE, NOT_SUPPORTED, UNKNOWN = 100, 801, 999

_Answer = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p,
    ctypes.c_ulong,
)  # fmt: skip


class LocalCalls(Calls):
    """The answers to this process. ``session`` is None outside of contexts: there is no device then, and memory can be
    freed only."""

    set_smem = "cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, {}, kernel, device)"

    def __init__(self) -> None:
        super().__init__(None, None)  # type: ignore[arg-type]
        self.lock = threading.RLock()

    @property
    def memory(self) -> DeviceMemory:
        """The program's device memory."""
        return memory_of_process()

    def reply(
        self, call: int, head: int, head_bytes: int, data: int, nbytes: int, answer: int | None, room: int
    ) -> int:
        """Answer a request of `requests.c`. Returns the error code."""
        given = ctypes.string_at(head, head_bytes) + ctypes.string_at(data, nbytes)
        with self.lock:
            code, found = self._answer_or_fail(call, given)
        if answer:
            ctypes.memmove(answer, found, min(len(found), room))
        return code

    def _answer_or_fail(self, call: int, data: bytes) -> tuple[int, bytes]:
        if self.session is None and CALLS[call] not in ("free", "driver_error_name", "error_string"):
            return NO_DEVICE, b""
        try:
            code, found = self.answer(call, data)
        except WarpwrightError as error:
            self._tell(str(error))
            return NOT_SUPPORTED, b""
        except KeyboardInterrupt:
            _thread.interrupt_main()  # raises it again after the call of C
            return UNKNOWN, b""
        except BaseException:
            traceback.print_exc()
            return UNKNOWN, b""
        if CALLS[call] == "launch":
            sys.stdout.write(found.rstrip(b"\0").decode(errors="replace"))
        return code, found

    def _reach(self, params: Sequence[bytes]) -> list[NDArray[np.uint8]]:
        """Returns the memory that a launch may reach: the driver's, and the tensors of torch in the arguments."""
        if "torch" not in sys.modules:
            return super()._reach(params)
        from warpwright.interop.memory import Memory

        tensors = Memory()
        tensors.find(params)
        return tensors.arrays()


@cache
def _served() -> tuple[ctypes.CDLL, LocalCalls, Any] | None:
    """Returns the driver's library, loaded once, with its answers; None if the process has loaded NVIDIA's."""
    with contextlib.suppress(OSError):
        ctypes.CDLL(DRIVER, mode=os.RTLD_NOLOAD)
        return None
    library, calls = ctypes.CDLL(str(driver()), mode=ctypes.RTLD_GLOBAL), LocalCalls()
    reply = _Answer(calls.reply)
    local = ctypes.c_void_p.in_dll(library, "warpwright_local")
    local.value = ctypes.cast(reply, ctypes.c_void_p).value
    over = ctypes.cast(library.warpwright_over, ctypes.c_void_p).value
    atexit.register(setattr, local, "value", over)  # objects of cuda.core may outlive this module
    return library, calls, reply


@contextlib.contextmanager
def opened(session: Session) -> Iterator[bool]:
    """The process has one CUDA device, the session's. Yields False in a process that has loaded NVIDIA's driver, where
    nothing changes."""
    served = _served()
    if served is None:
        yield False
        return
    library, calls, _ = served
    before, lost = calls.session, ctypes.c_int.in_dll(library, "warpwright_lost")
    calls.session, calls.memory.room = session, session.device.spec.hbm_bytes
    try:
        yield True
    finally:
        calls.session, lost.value = before, 0
