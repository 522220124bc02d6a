"""The limit of ``balance.capacity``, for those who count what it would drop."""

from kernels.routing import slot_limit

__all__ = ["slot_limit"]
