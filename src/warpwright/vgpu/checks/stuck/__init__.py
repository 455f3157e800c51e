"""Deadlocks: the graph of waiting threads, and the repair."""
