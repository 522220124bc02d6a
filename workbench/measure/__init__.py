"""Clocks, the stopping rule, cache control, the correctness gate and what the machine is."""
