"""Checks of a run: what happens before what, and which accesses nothing orders."""
