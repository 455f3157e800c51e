"""What a board answers beside what its virtual GPU assumes, for ``warpwright selftest``.

``probes``: launches of short kernels, each of which asks about one rule. `answers` runs them, `ask` in processes of
their own, because a fault ends a process's use of a real GPU. `kernels` has every shipped kernel with its float64
reference, `compare` the report.
"""
