"""PTX text, its syntax tree, parser and printer. ``parse(to_text(module)) == module``."""

from __future__ import annotations

from . import nodes
from .cache import parse_once
from .parser import parse
from .printer import instruction_text, operand_text, to_text

__all__ = ["instruction_text", "nodes", "operand_text", "parse", "parse_once", "to_text"]
