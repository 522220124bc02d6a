"""Runs on disk: one folder a run, Parquet parts a table, a progress file; crash-safe to write, forgiving to read."""
