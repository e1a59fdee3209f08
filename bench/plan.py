"""Which comparisons a run of the benchmark makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bench import shapes, task
from bench.options import Options
from bench.shapes import Shape
from bench.targets import Target, scaling, targets
from bench.task import Comparison, Run, Task


@dataclass(frozen=True)
class Section:
    """Comparisons that are reported together."""

    title: str
    comparisons: tuple[Comparison, ...]


@dataclass(frozen=True)
class Plan:
    """All that is to be measured. Targets that are out of its reach are judged as not measured."""

    models: Section
    small: Section
    threads: Section
    epilogue: Section
    targets: tuple[Target, ...]

    @property
    def comparisons(self) -> list[Comparison]:
        """Without repetitions."""
        sections = (self.models, self.small, self.threads, self.epilogue)
        every = [comparison for section in sections for comparison in section.comparisons]
        for target in self.targets:
            every += target.comparisons if target.required else ()
        return list(dict.fromkeys(every))


def plan(options: Options) -> Plan:
    """The comparisons that the options ask for."""
    return Plan(
        Section("Layers", tuple(_models(options))),
        Section("Small calls", tuple(_small(options))),
        Section("More threads", tuple(_threads(options))),
        Section("Cost of each step of the epilogue", tuple(_epilogue(options) if options.epilogue else ())),
        tuple(targets(options.subject, options.shapes, options.threads, required=options.targets)),
    )


def _against(options: Options, threads: int) -> Callable[[Task, Task], Iterator[Comparison]]:
    """A function that sets a task of the subject's against a task of every peer's."""

    def compare(ours: Task, theirs: Task) -> Iterator[Comparison]:
        for peer in options.peers:
            yield Comparison(Run(options.subject, ours, threads), Run(peer, theirs, threads))

    return compare


def _settings(options: Options) -> Iterator[tuple[str, int]]:
    return ((dtype, threads) for dtype in options.dtypes for threads in options.threads)


def _models(options: Options) -> Iterator[Comparison]:
    for dtype, threads in _settings(options):
        compare = _against(options, threads)
        for shape in options.shapes:
            bare = task.gemm(shape, dtype)
            if "gemm" in options.operations:
                yield from compare(bare, bare)
            for activation in options.activations:
                if "forward" in options.operations:
                    ours = task.forward(shape, dtype, activation, reserve=True)
                    yield from compare(ours, task.forward(shape, dtype, activation))
                    yield from compare(ours, bare)
                if "backward" in options.operations:
                    both = task.backward(shape, dtype, activation)
                    yield from compare(both, both)
                if "training" in options.operations:
                    both = task.training(shape, dtype, activation)
                    yield from compare(both, both)


def _small(options: Options) -> Iterator[Comparison]:
    for dtype, threads in _settings(options):
        compare = _against(options, threads)
        for shape, activation, reserve in ((shapes.CALL, "relu", True), (shapes.DECODE, "none", False)):
            ours = task.forward(shape, dtype, activation, reserve=reserve)
            yield from compare(ours, task.forward(shape, dtype, activation))
            yield from compare(ours, task.gemm(shape, dtype))


def _threads(options: Options) -> Iterator[Comparison]:
    for dtype in options.dtypes:
        for more in options.threads:
            if more > 1 and 1 in options.threads:
                yield scaling(options.subject, dtype, more)


def _epilogue(options: Options) -> Iterator[Comparison]:
    """Each step against the bare product of the subject's own, so that the difference is the step."""
    for dtype, threads in _settings(options):
        for shape in options.shapes:
            bare = Run(options.subject, task.gemm(shape, dtype), threads)
            for step in _epilogue_steps(shape, dtype):
                yield Comparison(Run(options.subject, step, threads), bare)


def _epilogue_steps(shape: Shape, dtype: str) -> list[Task]:
    """From nothing to everything."""
    return [
        task.gemm(shape, dtype),
        task.forward(shape, dtype, "none"),
        *(
            task.forward(shape, dtype, name, reserve=kept)
            for name in ("relu", "gelu")
            for kept in (False, True)
        ),
    ]
