"""Experts over ranks: how many a rank holds, and the least redundancy that makes them divide."""


def least_redundancy(num_experts: int, num_ranks: int) -> int:
    """Smallest number of extra expert copies with which ``num_experts`` plus copies divide by ``num_ranks``.

    256 experts on 3 ranks need 2, 384 on 144 need 48.
    """
    return -num_experts % num_ranks


def experts_per_rank(num_experts: int, num_ranks: int, *, redundant: int = 0) -> int:
    """Expert slots of one rank, copies counted.

    Raises ValueError naming the smallest redundancy that divides when this one does not.
    """
    slots, rest = divmod(num_experts + redundant, num_ranks)
    if rest:
        mend = redundant + least_redundancy(num_experts + redundant, num_ranks)
        least = least_redundancy(num_experts, num_ranks)
        hint = f"{least}" if least == mend else f"{mend} (the least of all is {least})"
        raise ValueError(
            f"{num_experts} experts and {redundant} redundant do not divide by {num_ranks} ranks; "
            f"redundant_experts: {hint} does, or auto"
        )
    return slots
