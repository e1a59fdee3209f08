"""fused_mlp, fused_glu and linear_act of fge.torch against PyTorch: ``python -m bench.torch_layers``.

Forward is inference; both is a forward with its backward, every operand wanting a gradient. "eager" is PyTorch's
own operators, "compiled" the same function under ``torch.compile`` (inductor, which needs a C++ compiler). Each runs
in a process of its own and they take turns, so that none waits for another's idle threads and all meet the same
neighbours. A ratio is the median over rounds of peer / fge within the round; above 1, fge is faster.

Memory: what fused_mlp keeps between forward and backward at each checkpoint_lvl, operands aside, beside what PyTorch's
operators keep.
"""

from __future__ import annotations

import argparse
import os
from statistics import median

from bench.torch_mlp import kept_bytes
from bench.turns import Contenders, answer, seconds_per_step

SLICE_SECONDS = 0.3
KINDS = ("eager", "compiled", "fge")
#: function -> shapes of its operands, as in torch.nn.functional.linear; activations come with each
SHAPES = {
    "linear_act": ((512, 768), (3072, 768), (3072,)),
    "fused_mlp": ((512, 768), (3072, 768), (3072,), (768, 3072), (768,)),
    "fused_glu": ((512, 768), (2048, 768), (2048, 768), (2048,), (2048,)),
}
ROWS = (
    *(("fused_mlp", activation) for activation in ("relu", "gelu")),
    *(("fused_glu", activation) for activation in ("silu", "gelu")),
    *(
        ("linear_act", activation)
        for activation in (
            "relu",
            "gelu",
            "gelu_erf",
            "silu",
            "sigmoid",
            "tanh",
            "leaky_relu(0.01)",
            "relu6",
            "clamp(-1, 1)",
            "sqrelu",
            "hardswish",
        )
    ),
)
DTYPES = ("float32", "bfloat16")
TASKS = ("forward", "both")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES)
    parser.add_argument("--functions", nargs="+", choices=SHAPES, default=tuple(SHAPES))
    asked = parser.parse_args()
    print(f"{asked.threads} threads" + "".join(f"; {name} {shapes}" for name, shapes in SHAPES.items()))
    print(f"{'':38} task     eager ms  compiled ms   fge ms  eager/fge  compiled/fge")
    for dtype in asked.dtypes:
        for function, activation in ROWS:
            if function in asked.functions:
                print(row(function, activation, dtype, asked.threads, asked.rounds), flush=True)
    if "fused_mlp" in asked.functions:
        print("\nkept between forward and backward, MiB    eager  level 0  level 1  level 2")
        for dtype in asked.dtypes:
            for activation in ("relu", "gelu", "silu"):
                print(
                    f"{'fused_mlp ' + activation + ', ' + dtype:38} " + memory(activation, dtype), flush=True
                )


def row(function: str, activation: str, dtype: str, threads: int, rounds: int) -> str:
    """Two lines of the table."""
    with Contenders(work, KINDS, function, activation, dtype, threads) as contenders:
        for task in TASKS:
            contenders.ask(
                task
            )  # by their answers all have compiled, so that none does beside what is measured
        seconds = {task: [contenders.ask(task) for _ in range(rounds)] for task in TASKS}
    lines = []
    for task, of_rounds in seconds.items():
        eager, compiled, fge = (1e3 * median(one[kind] for one in of_rounds) for kind in KINDS)
        ratios = [median(one[kind] / one["fge"] for one in of_rounds) for kind in KINDS[:2]]
        label = f"{function} {activation}, {dtype}"
        lines.append(
            f"{label:38} {task:7} {eager:9.2f} {compiled:12.2f} {fge:8.2f} {ratios[0]:9.2f}x {ratios[1]:12.2f}x"
        )
    return "\n".join(lines)


def work(end, kind: str, function: str, activation: str, dtype: str, threads: int) -> None:
    """A worker: it answers with the seconds of a forward, and of a forward with its backward."""
    import torch

    import fge

    torch.set_num_threads(threads)
    fge.set_num_threads(threads)
    operands = operands_of(function, dtype)
    call = function_of(kind, function, activation)
    out_grad = torch.randn(call(*operands).shape).to(operands[0].dtype)

    def forward():
        with torch.no_grad():
            return call(*operands)

    def both():
        return torch.autograd.grad(call(*operands), operands, out_grad)

    answer(
        end,
        forward=lambda: seconds_per_step(forward, SLICE_SECONDS),
        both=lambda: seconds_per_step(both, SLICE_SECONDS),
    )


def operands_of(function: str, dtype: str):
    import torch

    torch.manual_seed(0)
    shapes = SHAPES[function]
    scale = shapes[0][-1] ** -0.5
    operands = [torch.randn(shape) * (scale if i else 1) for i, shape in enumerate(shapes)]
    return [operand.to(getattr(torch, dtype)).requires_grad_() for operand in operands]


def function_of(kind: str, function: str, activation: str):
    """The function that a contender calls on the operands."""
    import torch

    import fge.torch

    if kind == "fge":
        ours = getattr(fge.torch, function)
        return lambda *operands: ours(*operands, activation=activation)
    linear, act = torch.nn.functional.linear, _activation(activation)
    composed = {
        "linear_act": lambda x, w, b: act(linear(x, w, b)),
        "fused_mlp": lambda x, w1, b1, w2, b2: linear(act(linear(x, w1, b1)), w2, b2),
        "fused_glu": lambda x, w, v, b, c: act(linear(x, w, b)) * linear(x, v, c),
    }[function]
    return torch.compile(composed, dynamic=False) if kind == "compiled" else composed


def _activation(name: str):
    import torch
    from torch.nn import functional

    return {
        "relu": functional.relu,
        "gelu": lambda z: functional.gelu(z, approximate="tanh"),
        "gelu_erf": functional.gelu,
        "silu": functional.silu,
        "sigmoid": torch.sigmoid,
        "tanh": torch.tanh,
        "leaky_relu(0.01)": functional.leaky_relu,
        "relu6": functional.relu6,
        "clamp(-1, 1)": functional.hardtanh,
        "sqrelu": lambda z: functional.relu(z).square(),
        "hardswish": functional.hardswish,
    }[name]


def memory(activation: str, dtype: str) -> str:
    """What is kept for the backward of an MLP, in MiB."""
    from fge.torch import fused_mlp

    operands = operands_of("fused_mlp", dtype)
    own = sum(operand.numel() * operand.element_size() for operand in operands)
    composed = function_of("eager", "fused_mlp", activation)
    calls = [composed, *(lambda *t, level=level: fused_mlp(*t, activation, level) for level in range(3))]
    # Biases, of which nothing but the shape is kept, are in what fused_mlp keeps and not in what PyTorch does.
    biases = sum(t.numel() * t.element_size() for t in operands if t.dim() == 1)
    kept = [kept_bytes(lambda call=call: call(*operands)) - own for call in calls]
    kept[0] += biases
    return " ".join(f"{bytes_ / 2**20:8.1f}" for bytes_ in kept)


if __name__ == "__main__":
    main()
