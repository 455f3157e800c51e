"""The end of a command's help: its exit statuses and examples."""

from __future__ import annotations

__all__ = ["WRONG", "manual"]

WRONG = "0 if every result is verified, 1 if one is wrong"


def manual(status: str, *examples: str, incomplete: str = "") -> str:
    """Returns the exit statuses, with those that every command has, and the examples, for the epilog of a command.

    ``status``: what 0 and 1 mean; ``incomplete``: what 3 means.
    """
    lines = "\n".join(f"  {example}" for example in examples)
    more = f", 3 {incomplete}" if incomplete else ""
    return f"Exit status: {status}, 2 for a usage error{more}, 130 after Ctrl-C.\n\n\b\nExamples:\n{lines}"
