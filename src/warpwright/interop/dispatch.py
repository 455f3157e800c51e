"""The state of torch's dispatcher that decides whether a call may run without it.

A call of the memo runs without the dispatcher, which for a kernel written in Python takes more time than the rest of
the call. Calls enter the memo with plain tensors and outside all modes and transforms; torch's guards check the same
for every later call. The guards check neither modes for ``__torch_function__`` (`function_mode_enabled`) nor the
profiler (`profiler_enabled`), so every call checks both.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch._C import DispatchKey, DispatchKeySet

__all__ = [
    "AFTER_AUTOGRAD",
    "KERNELS",
    "autograd_calls_kernel",
    "function_mode_enabled",
    "needs_conversion",
    "profiler_enabled",
]

AFTER_AUTOGRAD = torch._C._after_autograd_keyset
KERNELS = (DispatchKey.CPU, DispatchKey.CUDA)

NUMBERS, INTEGERS = (float, int, type(None)), (int, type(None))

function_mode_enabled, profiler_enabled = torch._C._is_torch_function_mode_enabled, torch.autograd._profiler_enabled


@functools.cache
def autograd_calls_kernel(keys: int) -> bool:
    """Returns whether the kernel comes next after autograd: no mode, subclass or transform is between them."""
    rest = (DispatchKeySet.from_raw_repr(keys) & AFTER_AUTOGRAD).remove(DispatchKey.ADInplaceOrView)
    return rest.highestPriorityTypeId() in KERNELS


def needs_conversion(scale: Any, left: Any, right: Any) -> bool:
    """Returns whether torch would convert or refuse an option of attention, though it may equal a valid one."""
    return scale.__class__ not in NUMBERS or left.__class__ not in INTEGERS or right.__class__ not in INTEGERS
