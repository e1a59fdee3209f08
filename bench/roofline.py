"""The roofline: rates over arithmetic intensity, below what the machine's arithmetic and its memory allow.

After Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for multicore
architectures", Communications of the ACM 52(4), 2009. Intensity is FLOPs over the bytes that any implementation must
move: each operand read once, each result written once. What a cache holds from one call to the next needn't come
from memory, so small layers may lie above the sloping part.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median

import matplotlib

matplotlib.use("Agg")  # no display is needed

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator

import fge
from bench.measurements import Measurements, peak_of
from bench.plot import COLOUR_OF
from bench.results import Results
from bench.task import Run, Task

_MARKERS = {"gemm": "x", "forward": "o", "backward": "s", "training": "^"}
_BYTES_OF = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


def draw(results: Results, directory: Path) -> list[Path]:
    """One PNG for each number of threads, with a panel for each dtype."""
    paths = []
    for threads in results.options.threads:
        panels = {
            dtype: [run for run in _runs(results) if (run.task.dtype, run.threads) == (dtype, threads)]
            for dtype in results.options.dtypes
        }
        panels = {dtype: runs for dtype, runs in panels.items() if runs}
        if panels:
            path = directory / f"roofline-{threads}-thread{'s' if threads > 1 else ''}.png"
            _draw_panels(panels, results, threads, path)
            paths.append(path)
    return paths


def intensity(task: Task) -> float:
    """FLOPs for each byte that must move."""
    m, k, n = task.shape
    x, y, out, size = m * k, k * n, m * n, _BYTES_OF[task.dtype]
    kept = {"none": 0, "bits": out / (8 * size), "z": out, "out": out}[fge.reserve_kind(task.activation)]
    written = kept if fge.reserve_kind(task.activation) != "out" else 0
    bias = n if task.bias else 0
    forward = x + y + bias + out + (written if task.reserve or task.operation == "training" else 0)
    backward = out + kept + 2 * (x + y) + bias
    elements = {
        "gemm": x + y + out,
        "forward": forward,
        "backward": backward,
        "training": forward + backward,
    }
    return task.flops / (size * elements[task.operation])


def _runs(results: Results) -> list[Run]:
    """Of the layers, what was measured, each once."""
    pairs = results.plan.models.comparisons
    runs = dict.fromkeys(run for pair in pairs for run in (pair.ours, pair.theirs))
    return [run for run in runs if results.measurements.has(run)]


def _draw_panels(panels: dict[str, list[Run]], results: Results, threads: int, path: Path) -> None:
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(6.8 * columns, 4.6 * rows + 0.9), squeeze=False, layout="constrained"
    )
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    for axis, (dtype, runs) in zip(axes.flat, panels.items()):
        _draw_panel(axis, runs, results.measurements, results.bandwidth[threads])
        axis.set_title(dtype, loc="left", weight="bold", fontsize=11)
    handles = {
        label: handle
        for axis in axes.flat
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="outside lower center",
        ncols=3 * columns,
        frameon=False,
        fontsize=8,
    )
    counted = f"{threads} thread{'s' if threads > 1 else ''}"
    figure.suptitle(f"Roofline, {counted}, {results.machine['processor']}", x=0.01, ha="left", fontsize=11)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _draw_panel(axis: Axes, runs: list[Run], measured: Measurements, bandwidth: float) -> None:
    subject = runs[0].contender
    for run in sorted(runs, key=lambda run: run.contender == subject):  # ours on top
        ours = run.contender == subject
        axis.plot(
            intensity(run.task),
            measured.rate(run) / 1e9,
            _MARKERS[run.task.operation],
            color=COLOUR_OF[run.contender],
            markersize=7 if ours else 5,
            alpha=0.9 if ours else 0.6,
            label=f"{run.contender}, {run.task.operation}",
        )
    peaks = [measured.rate(peak_of(run)) for run in runs if measured.has(peak_of(run))]
    peak = median(peaks) if peaks else np.inf
    spread = np.geomspace(min(map(intensity, (run.task for run in runs))) / 3, _rightmost(runs) * 2, 200)
    roof = np.minimum(peak, bandwidth * spread) / 1e9
    axis.plot(spread, roof, color="black", linewidth=1, label="measured roof", zorder=0)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.xaxis.set_minor_locator(LogLocator(subs=(2, 5)))  # more of them run into one another
    for scale in (axis.xaxis, axis.yaxis):
        scale.set_major_formatter("{x:g}")
        scale.set_minor_formatter("{x:g}")
        scale.set_tick_params(which="minor", labelsize=7)
    axis.set_xlabel("FLOPs per byte that must move")
    axis.set_ylabel("GFLOP/s of the products")
    axis.grid(alpha=0.25, which="both", linewidth=0.5)
    axis.spines[["top", "right"]].set_visible(False)


def _rightmost(runs: list[Run]) -> float:
    return max(intensity(run.task) for run in runs)
