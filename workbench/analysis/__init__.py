"""Statistics over finished runs: comparison with verdicts, and what varies between cells."""
