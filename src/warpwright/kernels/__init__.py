"""The kernels that come with the package, their configurations and their NumPy references."""
