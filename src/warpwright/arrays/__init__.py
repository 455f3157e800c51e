"""Arrays of NumPy, torch, CuPy and others, on the host or on a GPU."""
