"""Deadlocks: who waits for whom, and the repair."""
