"""Triton's entry point ``triton.backends``: with WARPWRIGHT_DEVICE, a process runs its kernels on a virtual GPU.

``import triton`` imports both modules. Without the variable they do nothing.
"""
