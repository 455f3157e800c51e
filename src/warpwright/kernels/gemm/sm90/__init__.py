"""GEMM for Hopper: wgmma, TMA, clusters."""
