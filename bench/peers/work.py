"""What a contender prepares, and how it says that it can't."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from bench.timing import seconds_per_call


class Unavailable(Exception):
    """Raised for a task that a contender doesn't offer; the text says why."""


def _as_they_are(result: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
    return result


@dataclass
class Work:
    """A task that is ready to be called."""

    call: Callable[[], object]
    #: The result of a call as numpy arrays in the layout of ``Inputs``: out, or x_grad, y_grad and bias_grad,
    #: or all four.
    outputs: Callable[[object], Sequence[np.ndarray]] = _as_they_are

    def measure(self, budget: float) -> float:
        """Seconds per call, from a slice of about ``budget`` seconds."""
        return seconds_per_call(self.call, budget)

    def check(self) -> Sequence[np.ndarray]:
        """The outputs of one call."""
        return self.outputs(self.call())
