"""Expert capacity: what of it can run today."""

from workbench.spec.errors import Unsupported
from workbench.spec.scenario import Cell


def require_dropless(cell: Cell) -> None:
    """Raises Unsupported for a capacity that drops or pads tokens outside the router."""
    if cell.balance.capacity is not None:
        raise Unsupported(
            f"balance.capacity: {cell.balance.capacity} is not there yet; leave it out (nothing is dropped),"
            " or use router: switch for a capacity in the router"
        )
