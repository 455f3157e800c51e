"""Attention for consumer Blackwell: TMA and mma.sync."""
