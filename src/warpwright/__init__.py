"""Asynchronous tensor-core kernels in Python, run and verified on a virtual GPU."""

from __future__ import annotations

from .errors import WarpwrightError

__all__ = ["WarpwrightError", "__version__"]

__version__ = "0.1.0"
