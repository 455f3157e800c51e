"""GEMM for datacentre Blackwell: the ladder, tcgen05, tensor memory."""
