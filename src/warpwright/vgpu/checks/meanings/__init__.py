"""The meaning of each instruction to the checks: its accesses, and the barriers that it signals or waits for."""
