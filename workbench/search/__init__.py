"""The best configuration for a goal, and why the others lost."""
