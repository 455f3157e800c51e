"""Attention for Hopper: forward, packed sequences, few queries, gradients."""
