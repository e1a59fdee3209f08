"""The tables on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench import text
from bench.measurements import Measurements
from bench.plan import Section
from bench.results import Results
from bench.targets import Outcome
from bench.task import Comparison, Run

#: A share of the processors that others may take without spoiling a median.
_NOISY = 0.05

_COLOURS = {
    Outcome.REACHED: "green",
    Outcome.MISSED: "red",
    Outcome.SO_FAR: "yellow",
    Outcome.UNMEASURED: "dim",
}


def show(results: Results, console: Console) -> None:
    """Everything, losses like wins."""
    _show_setting(results, console)
    measured = results.measurements
    for section in (results.plan.models, results.plan.small, results.plan.threads):
        _show_comparisons(section, measured, console)
    _show_epilogue(results.plan.epilogue, measured, console)
    _show_targets(results, console)
    _show_gaps(measured, console)
    _show_method(results, console)


def _show_setting(results: Results, console: Console) -> None:
    machine = results.machine
    console.rule("[bold]Setting")
    table = Table.grid(padding=(0, 2))
    table.add_row("processor", f"{machine['processor']}, {machine['logical_cpus']} logical CPUs")
    table.add_row("system", f"{machine['system']} {machine['architecture']}, Python {machine['python']}")
    if results.foreign_load is not None:
        noisy = results.foreign_load > _NOISY
        warning = "  [yellow]too much for figures to be relied on[/]" if noisy else ""
        table.add_row("other processes", f"took {results.foreign_load:.0%} of the processors{warning}")
    for (name, threads), found in results.contenders.items():
        counted = f"{threads} thread{'s' if threads > 1 else ''}"
        table.add_row(f"{name}, {counted}", escape(_describe(found)))
    console.print(table)


def _describe(found: dict) -> str:
    if "unavailable" in found:
        return f"not measured: {found['unavailable']}"
    return f"{found['version']}, {found['about']}"


def _show_comparisons(section: Section, measured: Measurements, console: Console) -> None:
    by_setting: dict[tuple[str, int], list[Comparison]] = {}
    for comparison in section.comparisons:
        if measured.ratio(comparison):
            setting = comparison.ours.task.dtype, comparison.ours.threads
            by_setting.setdefault(setting, []).append(comparison)
    for (dtype, threads), comparisons in by_setting.items():
        title = f"{section.title}: {dtype}, {threads} thread{'s' if threads > 1 else ''}"
        console.print(_comparison_table(title, comparisons, measured))


def _comparison_table(title: str, comparisons: Sequence[Comparison], measured: Measurements) -> Table:
    table = _table(
        title,
        words=("M,K,N", comparisons[0].ours.contender),
        figures=("time", "GFLOP/s", "of peak"),
    )
    table.add_column("against")
    _add_figures(table, ("time", "GFLOP/s", "ratio", "in rounds"))
    shape, ours = None, None
    for comparison in comparisons:
        if comparison.ours.task.shape != shape:
            table.add_section()
        # A run that is compared more than once is written once.
        left = _own_cells(comparison.ours, measured) if comparison.ours != ours else [""] * 4
        first = "" if comparison.ours.task.shape == shape else str(comparison.ours.task.shape)
        table.add_row(first, *left, *_their_cells(comparison, measured))
        shape, ours = comparison.ours.task.shape, comparison.ours
    return table


def _own_cells(run: Run, measured: Measurements) -> list[str]:
    return [
        str(run.task),
        text.seconds(measured.median(run)),
        text.gigaflops(measured.rate(run)),
        text.share(measured.share_of_peak(run)),
    ]


def _their_cells(comparison: Comparison, measured: Measurements) -> list[str]:
    theirs = comparison.theirs
    ratio = measured.ratio(comparison)
    assert ratio is not None  # the caller took measured ones only
    name = f"{theirs} (1 thread)" if theirs.threads != comparison.ours.threads else str(theirs)
    colour = "green" if ratio.of_medians >= 1 else "red"
    shown = f"[{colour}]{text.ratio(ratio.of_medians)}[/]"
    if comparison in measured.disagreements:
        shown = "[red]results differ[/]"
    return [
        name,
        text.seconds(measured.median(theirs)),
        text.gigaflops(measured.rate(theirs)),
        shown,
        f"{text.ratio(ratio.per_round)} ({ratio.low:.2f}-{ratio.high:.2f})",
    ]


def _table(title: str, words: Sequence[str], figures: Sequence[str] = ()) -> Table:
    """Where the terminal is narrow, words wrap and figures stay whole."""
    table = Table(
        title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    for heading in words:
        table.add_column(heading)
    _add_figures(table, figures)
    return table


def _add_figures(table: Table, headings: Sequence[str]) -> None:
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)


def _show_epilogue(section: Section, measured: Measurements, console: Console) -> None:
    comparisons = [comparison for comparison in section.comparisons if measured.ratio(comparison)]
    if not comparisons:
        return
    table = _table(
        section.title,
        words=("M,K,N", "dtype, threads", "step"),
        figures=("time", "GFLOP/s", "of peak", "over bare GEMM", "per element"),
    )
    previous = None
    for comparison in comparisons:
        run = comparison.ours
        shape = run.task.shape
        extra = measured.difference(comparison)
        costs = (
            f"{extra / measured.median(comparison.theirs):+.1%}",
            f"{extra / (shape.m * shape.n) * 1e12:+.0f} ps",
        )
        if comparison.theirs != previous:
            table.add_section()
        step, *figures = _own_cells(run, measured)
        table.add_row(
            "" if comparison.theirs == previous else str(shape),
            "" if comparison.theirs == previous else f"{run.task.dtype}, {run.threads}",
            step,
            *figures,
            *(costs if run != comparison.theirs else ()),
        )
        previous = comparison.theirs
    console.print(table)


def _show_targets(results: Results, console: Console) -> None:
    verdicts = results.verdicts
    if not results.options.targets:  # those that nobody asked for and that weren't measured say nothing
        verdicts = [verdict for verdict in verdicts if verdict.outcome is not Outcome.UNMEASURED]
    if not verdicts:
        return
    table = _table("Targets", words=("what", "threads", "target", "measured", ""))
    for verdict in verdicts:
        outcome = f"[{_COLOURS[verdict.outcome]}]{verdict.outcome.value}[/]"
        table.add_row(
            escape(verdict.what), str(verdict.threads), verdict.goal, escape(verdict.figure), outcome
        )
    console.print(table)


def _show_gaps(measured: Measurements, console: Console) -> None:
    """What isn't in the tables, and why: once for each reason."""
    gaps: dict[tuple[str, str], list[Run]] = {}
    for run, reason in measured.unavailable.items():
        gaps.setdefault((run.contender, reason), []).append(run)
    for (contender, reason), runs in gaps.items():
        tasks = dict.fromkeys(f"{run.task.operation} {run.task.dtype}" for run in runs)
        console.print(f"[yellow]{contender}[/] ({', '.join(tasks)}): {escape(reason)}", highlight=False)
    for comparison, difference in measured.disagreements.items():
        where = f"{comparison.ours.task.shape} {comparison.ours.task.dtype}"
        console.print(f"[red]{comparison.ours} and {comparison.theirs} at {where}: {difference}[/]")


def _show_method(results: Results, console: Console) -> None:
    options = results.options
    name = options.subject
    method = f"""
    {options.rounds} rounds; in each, every contender runs each task for about {options.slice_seconds:g} s
    in a process of its own while the others sleep. Times are medians over rounds of the median call. The
    ratio is their time / {name}'s: of the medians, and within rounds (median, quartiles); below 1, {name} is
    slower. FLOPs are those of the products alone; the peak is the multiply-add units', of the same rounds.
    Operands are the same in every call; every call allocates its outputs. gelu is the tanh form. PyTorch's
    weight is in its own layout, [N, K]; all other operands are row-major.
    """
    console.print(" ".join(method.split()), style="dim", highlight=False)
