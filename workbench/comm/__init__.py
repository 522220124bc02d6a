"""Dispatch plans, one file a strategy; payloads; and the transports that carry a plan out."""
