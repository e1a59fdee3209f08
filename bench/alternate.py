"""The driver: contenders take turns, A B A B A B, each in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from bench.agreement import disagreement
from bench.measurements import Measurements
from bench.process import Processes, WorkerDied
from bench.task import Comparison, Run

#: Told before each step what runs next.
OnStep = Callable[[Run], None]


def group(comparisons: Iterable[Comparison], extra: Iterable[Run] = ()) -> list[list[Run]]:
    """The distinct runs by shape and dtype: those of a group share operands, and take turns.

    They stay in the order of the comparisons, so that the two of a comparison run one right after the other.
    """
    groups: dict[tuple, dict[Run, None]] = {}
    pairs = [run for comparison in comparisons for run in (comparison.ours, comparison.theirs)]
    for run in [*pairs, *extra]:
        groups.setdefault((run.task.shape, run.task.dtype), {})[run] = None
    return [list(runs) for runs in groups.values()]


def steps(groups: Sequence[Sequence[Run]], rounds: int) -> int:
    """How often ``measure`` will call ``on_step`` if everything is available."""
    return sum(len(runs) for runs in groups) * (rounds + 1)


class Alternation:
    """Runs groups and gathers what they took."""

    def __init__(self, processes: Processes, rounds: int, slice_seconds: float, on_step: OnStep):
        self._processes = processes
        self._rounds = rounds
        self._slice_seconds = slice_seconds
        self._on_step = on_step
        self.measurements = Measurements()

    def measure(self, runs: Sequence[Run], comparisons: Iterable[Comparison]) -> None:
        """All rounds of one group."""
        self._processes.forget()
        self._compare_results(self._prepare(runs), comparisons)
        seconds: dict[Run, list[float]] = {run: [] for run in runs}
        for _ in range(self._rounds):
            for run in self._available(runs):
                self._on_step(run)
                try:
                    seconds[run].append(self._process(run).slice(run.task, self._slice_seconds))
                except WorkerDied as death:
                    self._bury(run, runs, death)
        self.measurements.seconds.update((run, seconds[run]) for run in self._available(runs))

    def _prepare(self, runs: Sequence[Run]) -> dict[Run, list]:
        probes = {}
        for run in runs:
            if run in self.measurements.unavailable:
                continue
            self._on_step(run)
            try:
                answer = self._process(run).prepare(run.task)
            except WorkerDied as death:
                self._bury(run, runs, death)
                continue
            if "unavailable" in answer:
                self.measurements.unavailable[run] = answer["unavailable"]
            else:
                probes[run] = answer["probe"]
        return probes

    def _compare_results(self, probes: dict[Run, list], comparisons: Iterable[Comparison]) -> None:
        for comparison in comparisons:
            ours, theirs = comparison.ours, comparison.theirs
            # The peak has no results, and neither has what isn't available.
            if comparison.same_formula and probes.get(ours) and probes.get(theirs):
                difference = disagreement(probes[ours], probes[theirs], ours.task.dtype)
                if difference:
                    self.measurements.disagreements[comparison] = difference

    def _available(self, runs: Sequence[Run]) -> list[Run]:
        return [run for run in runs if run not in self.measurements.unavailable]

    def _process(self, run: Run):
        return self._processes.get(run.contender, run.threads)

    def _bury(self, dead: Run, runs: Sequence[Run], death: WorkerDied) -> None:
        """Gives up what the dead process had prepared; the next group starts another."""
        self._processes.discard(dead.contender, dead.threads)
        for run in runs:
            if (run.contender, run.threads) == (dead.contender, dead.threads):
                self.measurements.unavailable[run] = f"its process died: {death}"
