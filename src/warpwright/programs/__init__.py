"""Programs of CUDA C++ on a virtual GPU: the CUDA runtime that they call, and the process that serves it."""
