"""What torch's dispatcher would do with a call of an operator.

A call of the memo runs without the dispatcher, which with a kernel written in Python takes more time than the rest of
the call. Calls enter the memo with plain tensors and outside all modes and transforms; torch's guards check the same of
every later call. Guards know neither modes for ``__torch_function__`` (`watched`) nor the profiler (`profiled`), so
every call asks for both.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch._C import DispatchKey, DispatchKeySet

__all__ = ["AFTER_AUTOGRAD", "KERNELS", "convertible", "profiled", "straight", "watched"]

AFTER_AUTOGRAD = torch._C._after_autograd_keyset
KERNELS = (DispatchKey.CPU, DispatchKey.CUDA)

NUMBERS, PLACES = (float, int, type(None)), (int, type(None))

watched, profiled = torch._C._is_torch_function_mode_enabled, torch.autograd._profiler_enabled


@functools.cache
def straight(keys: int) -> bool:
    """Returns whether the kernel follows autograd at once: no mode, no subclass and no transform is between them."""
    rest = (DispatchKeySet.from_raw_repr(keys) & AFTER_AUTOGRAD).remove(DispatchKey.ADInplaceOrView)
    return rest.highestPriorityTypeId() in KERNELS


def convertible(scale: Any, left: Any, right: Any) -> bool:
    """Returns whether torch would convert or refuse an option of attention, though it may equal a valid one."""
    return scale.__class__ not in NUMBERS or left.__class__ not in PLACES or right.__class__ not in PLACES
