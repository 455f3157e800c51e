"""The compiler that Triton expects in a backend: empty, since Triton's CUDA backend compiles for a virtual GPU."""

from __future__ import annotations

from typing import Any

from triton.backends.compiler import BaseBackend

__all__ = ["NoCompiler"]


class NoCompiler(BaseBackend):  # type: ignore[misc]
    """Compiles for no target."""

    @staticmethod
    def supports_target(target: Any) -> bool:
        """Returns False."""
        return False


NoCompiler.__abstractmethods__ = frozenset()  # Triton looks for a concrete class
