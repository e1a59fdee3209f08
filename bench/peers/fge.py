"""The package that this benchmark is of."""

from __future__ import annotations

import contextlib
import io
from functools import partial

import fge
from bench.inputs import Inputs
from bench.peers.work import Work
from bench.task import Task

DISTRIBUTION = "fge"


def about() -> str:
    """What it says of itself."""
    with contextlib.redirect_stdout(io.StringIO()) as text:
        fge.show_config()
    return text.getvalue().strip()


def prepare(task: Task, inputs: Inputs) -> Work:
    """Every operation, with the reserve where the task asks for it."""
    x, y, bias, out_grad = inputs
    if task.operation in ("gemm", "forward"):
        call = partial(
            fge.fused_gemm_epilogue,
            x,
            y,
            bias if task.bias else None,
            activation=task.activation,
            save_reserve=task.reserve,
        )
        return Work(call, lambda result: result[:1])

    if task.operation == "backward":
        _, reserve = fge.fused_gemm_epilogue(x, y, bias, activation=task.activation)
        return Work(
            partial(fge.fused_gemm_epilogue_grad, x, y, reserve, out_grad, activation=task.activation)
        )

    def step():
        out, reserve = fge.fused_gemm_epilogue(x, y, bias, activation=task.activation)
        return out, *fge.fused_gemm_epilogue_grad(x, y, reserve, out_grad, activation=task.activation)

    return Work(step)
