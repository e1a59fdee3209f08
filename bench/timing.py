"""Seconds per call of a function."""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from statistics import median
from time import perf_counter

#: Calls are timed in batches of at least this long, so that reading the clock costs nothing beside them.
BATCH_SECONDS = 0.5e-3
MIN_BATCHES = 3


def seconds_per_call(call: Callable[[], object], budget: float) -> float:
    """Median over batches that take about ``budget`` seconds together."""
    once = _seconds(call, 1)  # brings back caches and threads from the slice of another contender
    if (
        once < budget / MIN_BATCHES
    ):  # else the caches hardly mattered, and the call is too long to spend another
        once = _seconds(call, 1)
    size = max(1, round(BATCH_SECONDS / once))
    batches = max(MIN_BATCHES, round(budget / (once * size)))
    return median(_seconds(call, size) for _ in range(batches)) / size


def _seconds(call: Callable[[], object], calls: int) -> float:
    start = perf_counter()
    for _ in repeat(None, calls):
        call()
    return perf_counter() - start
