"""The measured peak of the multiply-add units, as a contender that needs the time of the arithmetic alone.

It takes its turns like the others, so that a share of the peak is of what the machine gave in that round.
"""

from __future__ import annotations

from collections.abc import Callable

from bench.inputs import Inputs
from bench.peers.work import Unavailable, Work
from bench.task import Task

DISTRIBUTION = "fge"

_TRIAL_SECONDS = 1e-3


class _Arithmetic(Work):
    """A rate of FLOP/s, told as the seconds that the task's products take at it."""

    def __init__(self, rate: Callable[[float], float], flops: int):
        super().__init__(call=lambda: None, outputs=lambda _: ())
        self._rate = rate
        self._flops = flops

    def measure(self, budget: float) -> float:
        return self._flops / self._rate(budget)


def about() -> str:
    """Not a library."""
    return "multiply-adds in registers"


def prepare(task: Task, inputs: Inputs) -> Work:
    """Over all threads of fge's."""
    del inputs
    try:
        from fge._kernels import measure_peak
    except ImportError as error:
        raise Unavailable(f"no measured peak, so no shares of it ({error})") from None
    try:
        measure_peak(task.dtype, _TRIAL_SECONDS)
    except ValueError:
        raise Unavailable("has no measured peak of this type, so no shares of it") from None
    return _Arithmetic(lambda seconds: measure_peak(task.dtype, seconds), task.flops)
