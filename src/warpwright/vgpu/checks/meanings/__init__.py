"""What each instruction means to the checks: who reads, who writes, who signals whom."""
