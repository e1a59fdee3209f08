"""The target of the memory: what one call takes beyond its results."""

from __future__ import annotations

from bench import task
from bench.inputs import dtype_of
from bench.process import Process, WorkerDied
from bench.shapes import Shape
from bench.targets import Outcome, Verdict

#: Little arithmetic and a large result: a temporary of its size can't hide.
SHAPE = Shape(8192, 64, 4096)
#: Room for packed panels and tiles. A float32 temporary of the result's size would be 128 MiB.
ALLOWANCE_PER_THREAD = 8 << 20


def judge(subject: str, dtype: str, threads: int) -> Verdict:
    """The verdict for a ReLU with its reserve."""
    work = task.forward(SHAPE, dtype, "relu", reserve=True)
    what = f"{dtype} relu + reserve of 1 bit, memory beyond the results at {SHAPE}"
    allowance = threads * ALLOWANCE_PER_THREAD
    goal = f"<= {allowance >> 20} MiB"
    # A process of its own: memory that an earlier call gave back would hide a temporary.
    process = Process(subject, threads)
    try:
        answer = process.memory(work)
    except WorkerDied as death:
        answer = {"unavailable": str(death)}
    finally:
        process.close()
    if "unavailable" in answer:
        return Verdict(what, goal, threads, answer["unavailable"], Outcome.UNMEASURED)
    results = SHAPE.m * (SHAPE.n * dtype_of(dtype).itemsize + 16 * -(-SHAPE.n // 128))
    extra = answer["bytes"] - results
    figure = f"{extra / 2**20:.1f} MiB (results {results / 2**20:.0f} MiB)"
    return Verdict(what, goal, threads, figure, Outcome.REACHED if extra <= allowance else Outcome.MISSED)
