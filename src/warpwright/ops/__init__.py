"""Operators: `ww.matmul` and `ww.attention`, from a call's arrays to the launches that compute it."""
