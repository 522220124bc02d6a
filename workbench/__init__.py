"""MoE workbench: measure and simulate mixture-of-experts layers in one table."""

__version__ = "0.1.0"
