"""What fge.torch costs and gains: ``python -m bench.torch_mlp``.

Training: the time of a step (forward, backward, SGD) of a network of four layers of torch.nn.Linear with their
activations, over that of the same network after ``replace_linear_act``. "autocast" is bfloat16 under
``torch.autocast`` with float32 parameters. Each network runs in a process of its own, and the two take turns, so
that neither waits for the other's idle threads and both meet the same neighbours. A ratio is the median over rounds
of plain / fused within the round.

Losses: the largest relative difference of a step's loss between the two, and beside it the largest between runs of
PyTorch alone that differ in nothing but the order of their sums (inputs, hidden units and rows are permuted). Such
runs round at the same places, while the fused layer leaves out a rounding in half types. Which of them is right is told
by training the same parameters with every forward and backward in float64: how far each kind's losses are off it, and
the error of the first gradients, the largest of any parameter.

Memory: the peak of a step above what was in use before it, and what the forward keeps for the backward.

Calls: the time of one small call, the contenders taking turns in one process.
"""

from __future__ import annotations

import argparse
import ctypes
import os
from itertools import combinations, pairwise
from statistics import median

from bench.resident import growth
from bench.turns import Contenders, answer, seconds_per_call, seconds_per_step

WIDTHS = (768, 3072, 768, 3072, 768)
BATCH = 512
MEMORY_BATCH = 2048
SLICE_SECONDS = 0.4
GRADIENT_BATCH = 128
LOSSES_COMPARED = 10
LEARNING_RATE = 5.0  # the loss is a mean over all outputs, whose gradients are small
PERMUTATIONS = 2
KINDS = ("plain", "fused")
#: name here -> torch.nn module and its options
ACTIVATIONS = {"relu": ("ReLU", {}), "gelu": ("GELU", {"approximate": "tanh"}), "gelu_erf": ("GELU", {})}
DTYPES = ("float32", "bfloat16", "autocast")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES)
    parser.add_argument("--activations", nargs="+", choices=ACTIVATIONS, default=ACTIVATIONS)
    asked = parser.parse_args()
    widths = " -> ".join(map(str, WIDTHS))
    print(
        f"training step, {widths}, batch {BATCH}, {asked.threads} threads; memory with batch {MEMORY_BATCH}"
    )
    print(
        f"{'':20}  plain ms  fused ms  plain/fused  losses differ by  orders of sums do  losses off plain, fused"
        "  gradients off plain, fused"
        "  peak MiB plain, fused  kept MiB plain, fused"
    )
    for dtype in asked.dtypes:
        for activation in asked.activations:
            print(training(dtype, activation, asked.threads, asked.rounds), flush=True)
    print("\none call, (8, 4) x (4, 128), float32, relu, one thread            torch us  fge us  torch/fge")
    for row in call_costs(asked.rounds):
        print(row)


def training(dtype: str, activation: str, threads: int, rounds: int) -> str:
    """One row of the table."""
    with Contenders(train, KINDS, dtype, activation, threads) as contenders:
        losses = contenders.ask("losses")
        errors = contenders.ask("gradients")
        seconds = [contenders.ask("seconds") for _ in range(rounds)]
        memory = contenders.ask("memory")
    plain, fused = (1e3 * median(of_round[kind] for of_round in seconds) for kind in KINDS)
    ratio = median(of_round["plain"] / of_round["fused"] for of_round in seconds)
    difference = differ(losses["plain"]["runs"][0], losses["fused"]["runs"][0])
    spread = max(differ(*pair) for pair in combinations(losses["plain"]["runs"], 2))
    off = {kind: differ(losses[kind]["runs"][0], losses[kind]["exact"]) for kind in KINDS}
    peaks, kept = ([memory[kind][i] / 2**20 for kind in KINDS] for i in range(2))
    return (
        f"{dtype:8} {activation:11} {plain:9.1f} {fused:9.1f} {ratio:11.2f}x {difference:17.1e} {spread:18.1e}"
        f" {off['plain']:11.1e} {off['fused']:8.1e} {errors['plain']:14.1e} {errors['fused']:8.1e}"
        f" {peaks[0]:14.0f} {peaks[1]:7.0f} {kept[0]:14.0f} {kept[1]:7.0f}"
    )


def differ(losses: list[float], others: list[float]) -> float:
    """By how much at most, relatively."""
    return max(abs(loss / other - 1) for loss, other in zip(losses, others, strict=True))


def train(end, kind: str, dtype: str, activation: str, threads: int) -> None:
    """A worker: it answers with losses of fresh networks, the seconds per step of a slice, and memory."""
    import torch

    import fge

    torch.set_num_threads(threads)
    fge.set_num_threads(threads)
    timed = Training(kind, dtype, activation)

    def losses() -> dict[str, list]:
        orders = range(1 + PERMUTATIONS if kind == "plain" else 1)
        runs = (Training(kind, dtype, activation, permutation=order) for order in orders)
        exact = Training("plain", dtype, activation)
        return {
            "runs": [[float(run.step()) for _ in range(LOSSES_COMPARED)] for run in runs],
            "exact": [float(exact.exact_step()) for _ in range(LOSSES_COMPARED)],
        }

    def memory() -> tuple[int, int]:
        large = Training(kind, dtype, activation, batch=MEMORY_BATCH)
        large.step()
        large.optimizer.zero_grad()
        ctypes.CDLL(None).malloc_trim(0)  # what is free is to be taken anew, and counted
        return growth(large.step), kept_bytes(large.loss)

    def gradients() -> float:
        return gradient_error(Training(kind, dtype, activation, batch=GRADIENT_BATCH))

    answer(
        end,
        gradients=gradients,
        losses=losses,
        seconds=lambda: seconds_per_step(timed.step, SLICE_SECONDS),
        memory=memory,
    )


class Training:
    """A network with its data. Another permutation is the same function of the same data, summed in another order."""

    def __init__(self, kind: str, dtype: str, activation: str, permutation: int = 0, batch: int = BATCH):
        import torch

        from fge.torch import replace_linear_act

        torch.manual_seed(0)
        layers = [torch.nn.Linear(*ends) for ends in pairwise(WIDTHS)]
        self.x, self.target = torch.randn(batch, WIDTHS[0]), torch.randn(batch, WIDTHS[-1])
        if permutation:
            torch.manual_seed(permutation)
            self._permute(layers, torch.randperm)
        module, options = ACTIVATIONS[activation]
        self.model = torch.nn.Sequential(
            *[part for layer in layers for part in (layer, getattr(torch.nn, module)(**options))][:-1]
        )
        if kind == "fused":
            replace_linear_act(self.model)
        if dtype == "bfloat16":
            self.model, self.x, self.target = (part.bfloat16() for part in (self.model, self.x, self.target))
        self.optimizer = torch.optim.SGD(self.model.parameters(), LEARNING_RATE)
        self.autocast = torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "autocast")

    def _permute(self, layers, random_order) -> None:
        rows, columns = random_order(len(self.x)), random_order(WIDTHS[0])
        self.x, self.target = self.x[rows][:, columns], self.target[rows]
        for layer in layers:
            units = random_order(layer.out_features) if layer is not layers[-1] else slice(None)
            layer.weight.data = layer.weight.data[units][:, columns].contiguous()
            layer.bias.data = layer.bias.data[units].contiguous()
            columns = units

    def loss(self):
        from torch.nn.functional import mse_loss

        with self.autocast:
            out = self.model(self.x)
        return mse_loss(out.float(), self.target.float())

    def step(self):
        self.optimizer.zero_grad()
        loss = self.loss()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def exact_step(self):
        """The step with all but the parameters in float64."""
        from torch.func import functional_call

        exact = {name: one.detach().double().requires_grad_() for name, one in self.model.named_parameters()}
        out = functional_call(self.model, exact, (self.x.double(),))
        loss = (out - self.target.double()).square().mean()
        loss.backward()
        for name, parameter in self.model.named_parameters():
            parameter.grad = exact[name].grad.to(parameter.dtype)
        self.optimizer.step()
        return loss.detach()


def gradient_error(training: Training) -> float:
    """The largest relative error of a parameter's first gradient, by norms, against float64."""
    training.loss().backward()
    parameters = list(training.model.parameters())
    gradients = [parameter.grad.double() for parameter in parameters]
    training.optimizer.zero_grad()
    training.model.double()
    out = training.model(training.x.double())
    (out - training.target.double()).square().mean().backward()
    exact = [parameter.grad for parameter in training.model.parameters()]
    return max(
        float((one - other).norm() / other.norm()) for one, other in zip(gradients, exact, strict=True)
    )


def kept_bytes(forward) -> int:
    """Of the tensors that autograd keeps for the backward, each memory counted once."""
    from torch.autograd.graph import saved_tensors_hooks

    kept = {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = forward()
    del loss  # until here the memories are distinct
    return sum(kept.values())


def call_costs(rounds: int) -> list[str]:
    """Rows of the table of calls."""
    import torch
    from torch.nn.functional import linear, relu

    import fge
    from fge.torch import linear_act

    fge.set_num_threads(1)
    torch.set_num_threads(1)
    operands = torch.ones(8, 4), torch.ones(128, 4), torch.ones(128)
    wanting = [tensor.clone().requires_grad_() for tensor in operands]
    out_grad = torch.ones(8, 128)
    calls = {
        "no gradient": (
            lambda: relu(linear(*operands)),
            lambda: linear_act(*operands, "relu"),
        ),
        "forward of what wants gradients": (
            lambda: relu(linear(*wanting)),
            lambda: linear_act(*wanting, "relu"),
        ),
        "forward and backward": (
            lambda: relu(linear(*wanting)).backward(out_grad),
            lambda: linear_act(*wanting, "relu").backward(out_grad),
        ),
    }
    rows = []
    for name, pair in calls.items():
        seconds = [[seconds_per_call(call) for call in pair] for _ in range(5 * rounds)]
        theirs, ours = (1e6 * median(column) for column in zip(*seconds, strict=True))
        ratio = median(one / other for one, other in seconds)
        rows.append(f"{name:65} {theirs:8.1f} {ours:7.1f} {ratio:9.2f}x")
    return rows


if __name__ == "__main__":
    main()
