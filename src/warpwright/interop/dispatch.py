"""What torch's dispatcher would do with a call of an operator, known without asking it.

A call that was made before is made again without the dispatcher, which with a kernel written in Python takes more than
all else that such a call does. What is kept for that was called with plain tensors and no mode or transform that sees
calls, and is only used for calls of which torch's guards say the same. What else may watch calls is asked each time:
modes for ``__torch_function__``, which guards do not know (`watched`), and the profiler (`profiled`).
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
    """Whether the kernel comes next: between autograd and it stands no mode, no subclass, no transform."""
    rest = (DispatchKeySet.from_raw_repr(keys) & AFTER_AUTOGRAD).remove(DispatchKey.ADInplaceOrView)
    return rest.highestPriorityTypeId() in KERNELS


def convertible(scale: Any, left: Any, right: Any) -> bool:
    """Whether torch would convert or refuse one of attention's options, which may yet equal one that it takes."""
    return scale.__class__ not in NUMBERS or left.__class__ not in PLACES or right.__class__ not in PLACES
