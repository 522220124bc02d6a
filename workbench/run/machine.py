"""What machine a run was on, for its manifest: the room that starts runs asks here, not in ``measure``."""

from workbench.measure.environment import describe_machine

__all__ = ["describe_machine"]
