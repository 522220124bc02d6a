"""From a planned cell to its record: measured, simulated or hybrid."""
