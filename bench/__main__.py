"""``python -m bench``"""

from __future__ import annotations

import sys
from contextlib import closing

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from bench import bandwidth, machine, memory, options, plot, report, roofline
from bench.alternate import Alternation, group, steps
from bench.load import ForeignLoad
from bench.measurements import Measurements, peak_of
from bench.plan import Plan, plan
from bench.process import Processes, WorkerDied
from bench.results import Results, write_json
from bench.targets import Verdict, judge
from bench.task import Run

#: The tables are wider than a pipe's default; a terminal's own width is respected.
_WIDTH_WITHOUT_TERMINAL = 140


def main() -> int:
    """Measures, shows, and writes."""
    asked = options.parse()
    console = Console(width=None if sys.stdout.isatty() else _WIDTH_WITHOUT_TERMINAL)
    planned = plan(asked)
    foreign = ForeignLoad()
    with closing(Processes()) as processes:
        contenders = _describe(planned, processes)
        missing = contenders[asked.subject, asked.threads[0]].get("unavailable")
        if missing:
            console.print(f"{asked.subject} can't be loaded: {escape(missing)}", style="red", highlight=False)
            return 1
        measured = _measure(asked, planned, processes)
    verdicts = _judge(asked, planned, measured)
    bandwidths = {threads: bandwidth.measure(threads) for threads in asked.threads}
    found = machine.describe(), contenders, measured, verdicts, bandwidths, foreign.share()
    results = Results(asked, planned, *found)
    report.show(results, console)
    asked.output.mkdir(parents=True, exist_ok=True)
    write_json(results, asked.output / "results.json")
    figures = plot.draw(results, asked.output) + roofline.draw(results, asked.output)
    for path in (asked.output / "results.json", *figures):
        console.print(f"wrote {path}", highlight=False)
    return 0


def _runs(planned: Plan) -> list[Run]:
    return list(dict.fromkeys(run for pair in planned.comparisons for run in (pair.ours, pair.theirs)))


def _describe(planned: Plan, processes: Processes) -> dict[tuple[str, int], dict]:
    found = {}
    for contender, threads in dict.fromkeys((run.contender, run.threads) for run in _runs(planned)):
        try:
            found[contender, threads] = processes.get(contender, threads).describe()
        except WorkerDied as death:
            processes.discard(contender, threads)
            found[contender, threads] = {"unavailable": str(death)}
    return found


def _measure(asked: options.Options, planned: Plan, processes: Processes) -> Measurements:
    comparisons = planned.comparisons
    peaks = [peak_of(run) for run in _runs(planned) if run.contender == asked.subject]
    groups = group(comparisons, extra=peaks)
    columns = (TextColumn("{task.description:<48}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    # To where it is seen though the tables go to a file, and drawn rarely: it runs beside what is measured.
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, refresh_per_second=2) as progress:
        bar = progress.add_task("", total=steps(groups, asked.rounds))

        def on_step(run: Run) -> None:
            progress.update(bar, advance=1, description=f"{run.task.shape} {run.task.dtype}: {run}")

        alternation = Alternation(processes, asked.rounds, asked.slice_seconds, on_step)
        for runs in groups:
            alternation.measure(runs, comparisons)
    return alternation.measurements


def _judge(asked: options.Options, planned: Plan, measured: Measurements) -> list[Verdict]:
    verdicts = [judge(target, measured) for target in planned.targets]
    if asked.targets:
        threads = asked.threads[-1]
        verdicts += [memory.judge(asked.subject, dtype, threads) for dtype in ("float32", "bfloat16")]
    return verdicts


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
