"""Known reasons why ptxas 13.0 and this package disagree about a mutant."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["reason"]

# Pairs of a pattern and the reason. The pattern is searched in "MESSAGE at LINE": the message of the one that refuses,
# and the line that was changed.
_PTXAS_REFUSES = (
    (r"Unsupported \.version", "a .version newer than this ptxas: this package runs PTX of later toolkits"),
    (r"Source location .* inlined_at|Debug information not found|dwarf", "debug data: it is text without effect"),
    (r"Parsing error near '\.(?:b8|u8|s8)", "debug data: it is text without effect"),
    (
        r"cannot be compiled to future architecture|is higher than default SM version",
        "a target of another GPU: the launch refuses it, not the load",
    ),
    (r"requires \.target sm_(?:[5-8]|90 )", "a target before sm_90: the table of instructions begins with sm_90"),
    (r"^no message at .*\.entry %", "ptxas ends without a message, for a kernel that has the name of a register"),
    (r"Unresolved extern function", "a function without a body that nothing calls: a linker resolves it"),
)
_WE_REFUSE = (
    (r"registers, expected 0 to 1048576", "a limit of this package: ptxas takes minutes for more registers"),
    (
        r"an integer of at most 64 bits|numbers from",
        "a literal beyond 64 bits: ptxas takes its lower bits",
    ),
)


def reason(row: dict[str, Any]) -> str:
    """The known reason for a disagreement, "" without one."""
    refused = row.get("ptxas", [""])[0] == "refused"
    known, said = (_PTXAS_REFUSES, row["ptxas"][1]) if refused else (_WE_REFUSE, row["load"][1])
    return next((text for pattern, text in known if re.search(pattern, f"{said} at {row['after']}")), "")
