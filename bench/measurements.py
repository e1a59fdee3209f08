"""What the runs took, and the statistics that are reported of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from statistics import median, quantiles
from typing import NamedTuple

from bench.peers import PEAK
from bench.task import PRODUCTS, Comparison, Run, gemm


class Ratio(NamedTuple):
    """Their time over ours: above 1, ours is faster."""

    of_medians: float
    #: Of the ratios within each round: median, and the quartiles around it.
    per_round: float
    low: float
    high: float


@dataclass
class Measurements:
    """Seconds per call of every run, one figure a round."""

    seconds: dict[Run, list[float]] = field(default_factory=dict)
    unavailable: dict[Run, str] = field(default_factory=dict)
    disagreements: dict[Comparison, str] = field(default_factory=dict)

    def has(self, *runs: Run) -> bool:
        """Whether all of these were measured."""
        return all(run in self.seconds for run in runs)

    def median(self, run: Run) -> float:
        """Seconds per call."""
        return median(self.seconds[run])

    def rate(self, run: Run) -> float:
        """FLOP/s."""
        return run.task.flops / self.median(run)

    def ratio(self, comparison: Comparison) -> Ratio | None:
        """None where one of the two wasn't measured."""
        ours, theirs = comparison.ours, comparison.theirs
        if not self.has(ours, theirs):
            return None
        rounds = [b / a for a, b in zip(self.seconds[ours], self.seconds[theirs], strict=True)]
        low, middle, high = quantiles(rounds, n=4, method="inclusive") if len(rounds) > 1 else rounds * 3
        return Ratio(self.median(theirs) / self.median(ours), middle, low, high)

    def difference(self, comparison: Comparison) -> float:
        """Seconds that ours takes longer, within rounds."""
        pairs = zip(self.seconds[comparison.ours], self.seconds[comparison.theirs], strict=True)
        return median(ours - theirs for ours, theirs in pairs)

    def share_of_peak(self, run: Run) -> float | None:
        """The rate over that of the multiply-add units in the same rounds."""
        ratio = self.ratio(Comparison(run, peak_of(run)))
        return ratio.of_medians * PRODUCTS[run.task.operation] if ratio else None


def peak_of(run: Run) -> Run:
    """The run that measures the peak beside this one."""
    return replace(run, contender=PEAK, task=gemm(run.task.shape, run.task.dtype))
