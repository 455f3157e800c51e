"""Scopes and register classes of a traced kernel: where a register may be read, and how PTX declares it."""

from __future__ import annotations

from dataclasses import dataclass

from warpwright.types import Scalar

__all__ = ["Scope", "register_class"]

_REGISTER_CLASSES = {
    "pred": ("p", "pred"),
    "f16": ("h", "b16"),
    "bf16": ("h", "b16"),
    "f32": ("f", "f32"),
    "tf32": ("f", "f32"),
    "f64": ("fd", "f64"),
    "e2m1x2": ("rb", "b8"),
}
_CLASS_OF_SIZE = {8: ("rs", "b16"), 16: ("rs", "b16"), 32: ("r", "b32"), 64: ("rd", "b64"), 128: ("rq", "b128")}


@dataclass(eq=False)
class Scope:
    """The part of a kernel in which a register may be read: the kernel, a role, a loop or a branch.

    ``kind`` is the construct (``"kernel"``, ``"role"``, ``"loop"``, ``"If"`` …), ``name`` its function, ``at`` its
    source line, and ``exit`` the label after a loop.
    """

    kind: str
    name: str
    at: str
    parent: Scope | None = None
    open: bool = True
    exit: str = ""

    @property
    def role(self) -> Scope | None:
        """The role that this scope belongs to, or None outside roles."""
        scope: Scope | None = self
        while scope is not None and scope.kind != "role":
            scope = scope.parent
        return scope


def register_class(type: type[Scalar]) -> tuple[str, str]:
    """Returns the prefix and the declared type of the registers of ``type``: ``("rd", "b64")`` for u64."""
    return _REGISTER_CLASSES.get(type.name) or _CLASS_OF_SIZE[type.bits]
