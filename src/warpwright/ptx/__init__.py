"""PTX text, its syntax tree, parser and printer. ``parse(to_text(module)) == module``."""

from __future__ import annotations

from . import nodes
from .cache import load_kernel, load_once, load_outline
from .check import check, load_module
from .parser import parse
from .printer import instruction_text, operand_text, to_text

__all__ = [
    "check", "instruction_text", "load_kernel", "load_module", "load_once", "load_outline", "nodes", "operand_text",
    "parse", "to_text",
]  # fmt: skip
