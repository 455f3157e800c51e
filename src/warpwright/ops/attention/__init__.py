"""`ww.attention`, packed attention and gradients: plans, cached calls and trials."""
