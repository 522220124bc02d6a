"""Runs a plan on Ray: the session, gangs of rank actors, batches of simulated cells, progress, faults, resume."""
