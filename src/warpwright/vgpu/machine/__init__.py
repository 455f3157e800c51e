"""The machine: clusters, warps, barriers, memory, and the order in which they run."""
