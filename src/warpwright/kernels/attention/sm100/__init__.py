"""Attention for datacentre Blackwell: tcgen05 and tensor memory."""
