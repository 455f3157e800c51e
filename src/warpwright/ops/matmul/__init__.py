"""`ww.matmul`: plans, epilogues, cached calls and measurements of GEMM."""
