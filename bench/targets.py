"""The performance targets, and the verdict on each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import geometric_mean

from bench import shapes, task, text
from bench.measurements import Measurements
from bench.peers import PEAK
from bench.shapes import Shape
from bench.task import Comparison, Run, Task


@dataclass(frozen=True)
class Target:
    """A goal for the ratios (their time / ours) of some comparisons."""

    what: str
    goal: str
    threads: int
    comparisons: tuple[Comparison, ...]
    #: Whether the plan must measure it, or only judges it if it happens to be measured.
    required: bool
    mean: float = 0.0
    each: float = 0.0
    #: How a ratio is shown: as such, as a share, or as the inverse (our time / theirs).
    form: Callable[[float], str] = text.ratio


class Outcome(Enum):
    """Of a target; the value is its wording."""

    REACHED = "reached"
    MISSED = "not reached"
    SO_FAR = "reached so far"  # by what was measured of it
    UNMEASURED = "not measured"


@dataclass(frozen=True)
class Verdict:
    """What came out of a target."""

    what: str
    goal: str
    threads: int
    figure: str
    outcome: Outcome


def targets(
    subject: str, sizes: Sequence[Shape], threads: Sequence[int], *, required: bool
) -> Iterator[Target]:
    """Every target, for each number of threads."""
    for count in threads:
        yield from _Targets(subject, sizes, count, required).all()
    yield from _scaling(subject, threads, required)


def judge(target: Target, measured: Measurements) -> Verdict:
    """The verdict; comparisons that weren't measured are counted, not guessed."""
    ratios = {pair: ratio for pair in target.comparisons if (ratio := measured.ratio(pair))}
    if not ratios:
        return Verdict(target.what, target.goal, target.threads, "-", Outcome.UNMEASURED)
    values = [ratio.of_medians for ratio in ratios.values()]
    mean, worst = geometric_mean(values), min(ratios, key=lambda pair: ratios[pair].of_medians)
    least = ratios[worst].of_medians
    figure = target.form(mean)
    if len(values) > 1:
        same_shape = len({pair.ours.task.shape for pair in ratios}) == 1
        where = f"against {worst.theirs.contender}" if same_shape else f"at {worst.ours.task.shape}"
        figure = f"mean {figure}, least {target.form(least)} {where}"
    complete = len(values) == len(target.comparisons)
    if not complete:
        figure += f" ({len(values)} of {len(target.comparisons)} measured)"
    wrong = any(pair in measured.disagreements for pair in ratios)
    if wrong:
        figure += " (results differ)"
    if wrong or mean < target.mean or least < target.each:
        outcome = Outcome.MISSED
    else:
        outcome = Outcome.REACHED if complete else Outcome.SO_FAR
    return Verdict(target.what, target.goal, target.threads, figure, outcome)


@dataclass(frozen=True)
class _Targets:
    subject: str
    sizes: Sequence[Shape]
    threads: int
    required: bool

    def all(self) -> Iterator[Target]:
        """In the order of the table."""
        yield self._forward("float32", "geometric mean >= 1.4x, none below 1.0x", mean=1.4, each=1.0)
        yield self._bare_gemm()
        yield self._peak("bare GEMM", task.gemm)
        yield self._peak("gelu + reserve", _gelu_with_reserve)
        yield self._forward("bfloat16", "geometric mean >= 3x, none below 1.5x", mean=3.0, each=1.5)
        yield self._forward("float16", "geometric mean >= 2.5x", mean=2.5)
        yield self._training("float32", 1.3)
        yield self._training("bfloat16", 2.5)
        yield self._call()
        for dtype in ("float32", "bfloat16", "float16"):
            yield self._decode(dtype)

    def _target(self, what: str, goal: str, pairs: list[tuple[Task, str, Task]], **criteria) -> Target:
        comparisons = tuple(
            Comparison(Run(self.subject, ours, self.threads), Run(peer, theirs, self.threads))
            for ours, peer, theirs in pairs
        )
        return Target(what, goal, self.threads, comparisons, self.required, **criteria)

    def _forward(self, dtype: str, goal: str, **criteria) -> Target:
        pairs = [
            (_gelu_with_reserve(shape, dtype), "torch", task.forward(shape, dtype, "gelu"))
            for shape in self.sizes
        ]
        return self._target(
            f"{dtype} forward, gelu + reserve, against PyTorch eager", goal, pairs, **criteria
        )

    def _bare_gemm(self) -> Target:
        pairs = [
            (_gelu_with_reserve(shape, "float32"), "numpy", task.gemm(shape, "float32"))
            for shape in self.sizes
        ]
        what = "float32 forward, gelu + reserve, against numpy's bare GEMM"
        return self._target(what, "never slower", pairs, each=1.0)

    def _peak(self, name: str, make) -> Target:
        large = {shapes.CUBE, *(s for s in self.sizes if s.m * s.k * s.n >= 1024**3)}
        pairs = [(make(shape, "float32"), PEAK, task.gemm(shape, "float32")) for shape in sorted(large)]
        what = f"float32 share of the measured peak, 1024^3 and up, {name}"
        return self._target(what, ">= 90 %", pairs, each=0.9, form="{:.1%}".format)

    def _training(self, dtype: str, mean: float) -> Target:
        steps = [task.training(shape, dtype, "gelu") for shape in self.sizes]
        what = f"{dtype} forward + backward, gelu, against PyTorch autograd"
        return self._target(what, f">= {mean}x", [(step, "torch", step) for step in steps], mean=mean)

    def _call(self) -> Target:
        ours = task.forward(shapes.CALL, "float32", "relu", reserve=True)
        pairs = [(ours, "numpy", task.gemm(shapes.CALL, "float32"))]
        what = "(8,4) x (4,128) relu + reserve, time of numpy's bare matmul"
        return self._target(what, "<= 1.5x", pairs, each=1 / 1.5, form=lambda ratio: text.ratio(1 / ratio))

    def _decode(self, dtype: str) -> Target:
        ours = task.forward(shapes.DECODE, dtype, "none")
        pairs = [(ours, "numpy", task.gemm(shapes.DECODE, dtype)), (ours, "torch", ours)]
        what = f"{dtype} M = 1, K = N = 4096, against numpy's gemv and PyTorch's linear"
        return self._target(what, "not slower", pairs, each=1.0)


def _scaling(subject: str, threads: Sequence[int], required: bool) -> Iterator[Target]:
    if 1 in threads and 2 in threads:
        pair = scaling(subject, "float32", 2)
        yield Target("two threads against one, 1024^3", ">= 1.85x", 2, (pair,), required, each=1.85)


def scaling(subject: str, dtype: str, threads: int) -> Comparison:
    """The subject against itself with one thread."""
    work = _gelu_with_reserve(shapes.CUBE, dtype)
    return Comparison(Run(subject, work, threads), Run(subject, work, 1))


def _gelu_with_reserve(shape: Shape, dtype: str) -> Task:
    return task.forward(shape, dtype, "gelu", reserve=True)
