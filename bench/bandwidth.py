"""The bandwidth of main memory, for the roofline."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

import numpy as np

_BYTES = 1 << 27  # of each array: beyond the caches of any machine this is likely to run on
_REPETITIONS = 7


def measure(threads: int) -> float:
    """Bytes per second that ``threads`` threads read and write at best while each copies an array of its own."""
    pairs = [(np.ones(_BYTES, np.uint8), np.ones(_BYTES, np.uint8)) for _ in range(threads)]

    def copy(pair: tuple[np.ndarray, np.ndarray]) -> None:
        np.copyto(*pair)  # without the interpreter's lock

    seconds = []
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(_REPETITIONS):
            start = perf_counter()
            list(pool.map(copy, pairs))
            seconds.append(perf_counter() - start)
    return 2 * _BYTES * threads / min(seconds)
