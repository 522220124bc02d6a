"""Traffic: skews over experts, the router applied to them, activations, and statistics of the load."""
