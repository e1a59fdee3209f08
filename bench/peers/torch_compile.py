"""PyTorch's linear and activation under ``torch.compile`` (inductor). Compiling is no part of what is timed."""

from __future__ import annotations

from functools import partial

import torch

from bench.inputs import Inputs
from bench.peers import torch as eager
from bench.peers.work import Work
from bench.task import Task

DISTRIBUTION = eager.DISTRIBUTION


def about() -> str:
    """The compiler's backend, and what PyTorch's own operators are."""
    return f"inductor; {eager.about()}"


def prepare(task: Task, inputs: Inputs) -> Work:
    """As in eager mode, with the forward compiled, and its backward with it."""
    return eager.prepare(task, inputs, transform=partial(torch.compile, dynamic=False))
