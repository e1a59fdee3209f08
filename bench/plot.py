"""The bars: rates of whole layers as bars, beside those of the peers and below the peak."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from statistics import median

import matplotlib

matplotlib.use("Agg")  # no display is needed

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench import text
from bench.measurements import Measurements, peak_of
from bench.options import SUBJECT
from bench.peers import PEERS
from bench.results import Results
from bench.shapes import Shape
from bench.task import OPERATIONS, Comparison, Run

#: By shape, the comparisons of one operation with one activation.
Panel = dict[Shape, list[Comparison]]
#: By activation, then operation.
Grid = dict[str, dict[str, Panel]]

_GROUP = 0.82  # what the bars of one shape take of the distance between two shapes
_LEGEND_COLUMNS = 2  # that a panel's width has room for
_OURS = "#0b6e99"
_LOSS = "#b3261e"
_COLOURS = (
    ("#d9822b", "#f2cfa8"),
    ("#6a994e", "#cfe0c3"),
    ("#8e5ea2", "#dccbe3"),
    ("#5b4a9e", "#cfc9e6"),
    ("#7f5539", "#ddc9b6"),
    ("#a8954a", "#e6dfc2"),
)
#: A peer's own version, and its bare product in a paler tone: less work than ours.
_PEER = dict(zip(PEERS, _COLOURS, strict=True))
#: By contender, the colour that tells who it is in every figure.
COLOUR_OF = {SUBJECT: _OURS, **{peer: colours[0] for peer, colours in _PEER.items()}}


def draw(results: Results, directory: Path) -> list[Path]:
    """One PNG for each dtype and number of threads."""
    paths = []
    for dtype in results.options.dtypes:
        for threads in results.options.threads:
            grid = _grid(results, dtype, threads)
            if grid:
                path = directory / f"{dtype}-{threads}-thread{'s' if threads > 1 else ''}.png"
                figure = _figure(grid, results)
                figure.suptitle(_title(results, dtype, threads), x=0.01, ha="left", fontsize=11)
                figure.savefig(path, dpi=130)
                plt.close(figure)
                paths.append(path)
    return paths


def _grid(results: Results, dtype: str, threads: int) -> Grid:
    """Bare products have no panel: they are drawn beside what contains them."""
    grid: Grid = {}
    for comparison in results.plan.models.comparisons:
        ours = comparison.ours
        task = ours.task
        setting = task.dtype, ours.threads
        if (
            setting == (dtype, threads)
            and task.operation != "gemm"
            and results.measurements.ratio(comparison)
        ):
            row = grid.setdefault(task.activation, {})
            row.setdefault(task.operation, {}).setdefault(task.shape, []).append(comparison)
    return grid


def _figure(grid: Grid, results: Results) -> Figure:
    operations = [name for name in OPERATIONS if any(name in row for row in grid.values())]
    heights = [max(map(_bars, row.values())) * 0.24 + 0.9 for row in grid.values()]
    figure, axes = plt.subplots(
        len(grid),
        len(operations),
        figsize=(6.6 * len(operations) + 0.8, sum(heights) + 1.7),
        height_ratios=heights,
        sharex=True,
        squeeze=False,
        layout="constrained",
    )
    figure.get_layout_engine().set(wspace=0.05, hspace=0.04)
    for row, panels in zip(axes, grid.values(), strict=True):
        for axis, operation in zip(row, operations, strict=True):
            if operation in panels:
                _draw_panel(axis, panels[operation], results.measurements)
            else:
                axis.set_axis_off()
    for axis in axes[:, 0]:
        axis.set_ylabel("M x K x N")
    longest = max(axis.dataLim.x1 for axis in axes.flat)
    axes[0, 0].set_xlim(0, 1.17 * longest)  # room for the figures beside the longest bar
    handles = {
        label: handle
        for axis in axes.flat
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    columns = min(len(handles), max(2, _LEGEND_COLUMNS * len(operations)))
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=columns, frameon=False
    )
    return figure


def _title(results: Results, dtype: str, threads: int) -> str:
    counted = f"{threads} thread{'s' if threads > 1 else ''}"
    foreign = results.foreign_load
    busy = "" if foreign is None else f"; other processes took {foreign:.0%} of the processors"
    return (
        f"act(x @ y + bias) in {dtype}, {counted}, {results.machine['processor']}{busy}\n"
        f"medians of {results.options.rounds} alternating rounds; beside each bar its GFLOP/s and "
        f"how many times as fast {results.options.subject} was (red: slower)"
    )


def _bars(panel: Panel) -> float:
    """The height of a panel in bars, with the gaps between shapes."""
    return sum(len(comparisons) + 1 for comparisons in panel.values()) / _GROUP


def _draw_panel(axis: Axes, panel: Panel, measured: Measurements) -> None:
    thickness = _GROUP / (1 + max(len(comparisons) for comparisons in panel.values()))
    for place, comparisons in enumerate(panel.values()):
        y = place - _GROUP / 2 + thickness / 2
        ours = comparisons[0].ours
        rate = measured.rate(ours)
        _bar(axis, y, thickness, rate, _OURS, ours.contender, text.gigaflops(rate), weight="bold")
        for comparison in comparisons:
            y += thickness
            _draw_peer(axis, y, thickness, comparison, measured)
    _draw_peak(axis, (comparisons[0].ours for comparisons in panel.values()), measured)
    axis.set_yticks(range(len(panel)), [" x ".join(map(str, shape)) for shape in panel])
    axis.invert_yaxis()
    axis.margins(y=0.02)
    first = next(iter(panel.values()))[0]
    axis.set_title(str(first.ours.task), loc="left", weight="bold", fontsize=11)
    axis.set_xlabel("GFLOP/s of the products")
    axis.tick_params(axis="x", labelbottom=True)
    axis.spines[["top", "right"]].set_visible(False)


def _draw_peer(
    axis: Axes, y: float, thickness: float, comparison: Comparison, measured: Measurements
) -> None:
    theirs = comparison.theirs
    ratio = measured.ratio(comparison)
    assert ratio is not None  # panels hold measured comparisons only
    bare = theirs.task.operation == "gemm"
    label = f"{theirs.contender}, bare GEMM only" if bare else f"{theirs.contender}, the same operation"
    rate = measured.rate(theirs)
    wrong = comparison in measured.disagreements
    note = f"{text.gigaflops(rate)}   {'results differ' if wrong else text.ratio(ratio.of_medians)}"
    colour = _LOSS if wrong or ratio.of_medians < 1 else "black"
    _bar(axis, y, thickness, rate, _PEER[theirs.contender][bare], label, note, color=colour)


def _bar(
    axis: Axes, y: float, thickness: float, rate: float, fill: str, label: str, note: str, **font
) -> None:
    axis.barh(y, rate / 1e9, 0.9 * thickness, color=fill, label=label)
    behind = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}  # the line of the peak may pass here
    axis.annotate(
        note,
        (rate / 1e9, y),
        (4, 0),
        textcoords="offset points",
        va="center",
        fontsize=8,
        bbox=behind,
        **font,
    )


def _draw_peak(axis: Axes, runs: Iterable[Run], measured: Measurements) -> None:
    peaks = [measured.rate(peak_of(run)) for run in runs if measured.has(peak_of(run))]
    if peaks:
        label = "measured multiply-add peak"
        axis.axvline(
            median(peaks) / 1e9, color="black", linestyle=(0, (4, 3)), linewidth=1, label=label, zorder=0
        )
