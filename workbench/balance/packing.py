"""Replicating hot experts and packing slots into ranks of equal size."""

import heapq

import numpy as np


def replicate(loads: np.ndarray, num_slots: int, *, num_ranks: int) -> tuple[np.ndarray, np.ndarray]:
    """Gives each spare slot to the expert with the highest load per copy.

    loads [E] tokens; returns the expert of every slot int64 [num_slots] and the load that slot then bears.
    Ties go to the expert with fewer copies, then the lower index. An expert with a copy for every rank gets no more
    while others lack one.
    """
    copies = np.ones(loads.size, np.int64)
    heap = [(-load, 1, expert) for expert, load in enumerate(loads.tolist())]
    heapq.heapify(heap)
    most = max(num_ranks, -(-num_slots // loads.size))
    for _ in range(num_slots - loads.size):
        _, count, expert = heapq.heappop(heap)
        copies[expert] = count + 1
        if count + 1 < most:
            heapq.heappush(heap, (-loads[expert] / (count + 1), count + 1, expert))
    experts = np.repeat(np.arange(loads.size), copies)
    return experts, loads[experts] / copies[experts]


def pack(loads: np.ndarray, num_bins: int, *, labels: np.ndarray | None = None) -> np.ndarray:
    """Bin of every item, int64 [n]; bins hold n / num_bins items each.

    Heaviest first into the lightest bin with room (Graham's longest-processing-time rule), passing over bins that
    hold the same label where another has room: two replicas on one rank share nothing.
    """
    room = loads.size // num_bins
    open_bins = [(0.0, 0, number) for number in range(num_bins)]  # weight, items, bin: a heap
    result = np.empty(loads.size, np.int64)
    holds: dict[int, set[int]] = {}
    for item in np.argsort(-loads, kind="stable").tolist():
        taken = holds.setdefault(int(labels[item]), set()) if labels is not None else set()
        passed = []
        while open_bins and open_bins[0][2] in taken:
            passed.append(heapq.heappop(open_bins))
        weight, items, chosen = heapq.heappop(open_bins) if open_bins else passed.pop(0)
        for other in passed:
            heapq.heappush(open_bins, other)
        taken.add(chosen)
        result[item] = chosen
        if items + 1 < room:
            heapq.heappush(open_bins, (weight + float(loads[item]), items + 1, chosen))
    return result
