"""What splitting a layer between processes gains: ``python -m bench.scaling``.

An MLP of two LinearAct layers, forward and backward, in one process and in two, each with one thread, on one machine
(gloo over the loopback device). The layouts take turns; a figure is the median over rounds.

    data    DistributedDataParallel: rows are split, gradients of the parameters are reduced
    tensor  ColwiseParallel and RowwiseParallel: the hidden layer is split, out and the gradient of x are reduced

Strong scaling keeps the problem and doubles the processes: speed-up is t(1) / t(2), at best 2. Weak scaling doubles
the rows (data) or the hidden width (tensor) with the processes: efficiency is t(1) / t(2), at best 1.

The model beside the measurement: a rank computes FLOPs / processes at the rate of the one process, and sends and
receives 2 (p - 1) / p times the reduced bytes (a ring) at the bandwidth that an all_reduce of that size had. On one
machine the processes share memory and caches, which it doesn't know of. From it follows where splitting pays for p
processes: in data parallelism from (4/3) rate / bandwidth rows of float32, in tensor parallelism from a hidden width of
(4/3) rate / bandwidth, with the rate in FLOP/s and the bandwidth in bytes/s.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
from statistics import median
from time import perf_counter

IN, HIDDEN, OUT = 768, 3072, 768
ROWS = 512
STEPS = 3
#: name -> (processes, rows, hidden width, how it is split)
LAYOUTS = {
    "one": (1, ROWS, HIDDEN, "data"),
    "data, strong": (2, ROWS, HIDDEN, "data"),
    "data, weak": (2, 2 * ROWS, HIDDEN, "data"),
    "tensor, strong": (2, ROWS, HIDDEN, "tensor"),
    "tensor, weak": (2, ROWS, 2 * HIDDEN, "tensor"),
}


def flops(rows: int, hidden: int) -> int:
    """Of the three products of each layer."""
    return 6 * rows * hidden * (IN + OUT)


def reduced_bytes(rows: int, hidden: int, split: str) -> int:
    """Of float32, in all reductions of a step."""
    return 4 * (hidden * (IN + OUT) + hidden + OUT if split == "data" else rows * (IN + OUT) + OUT)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    asked = parser.parse_args()
    groups = {name: Group(*layout) for name, layout in LAYOUTS.items()}
    seconds: dict[str, list[float]] = {name: [] for name in groups}
    reductions: dict[str, list[float]] = {name: [] for name in groups}
    for _ in range(asked.rounds):
        for name, group in groups.items():
            seconds[name].append(group.ask("step"))
            reductions[name].append(group.ask("reduce"))
    for group in groups.values():
        group.close()
    times = {name: median(values) for name, values in seconds.items()}
    rate = flops(ROWS, HIDDEN) / times["one"]
    print(
        f"{IN} -> {HIDDEN} -> {OUT}, gelu, {ROWS} rows, float32, one thread each; one process {rate / 1e9:.0f} GFLOP/s"
    )
    print(
        "layout          ms/step  model ms  t(1)/t(2)  model   MFLOP/rank  MB reduced/rank  all_reduce GB/s  pays from"
    )
    for name, (processes, rows, hidden, split) in LAYOUTS.items():
        own = flops(rows, hidden) / processes
        sent = 2 * (processes - 1) / processes * reduced_bytes(rows, hidden, split)
        reduction = median(reductions[name])
        model = own / rate + (reduction if processes > 1 else 0)
        if processes > 1:
            bandwidth = sent / reduction
            where = f"{4 / 3 * rate / bandwidth:.0f} {'rows' if split == 'data' else 'wide'}"
            tail = f"{bandwidth / 1e9:16.2f}  {where}"
        else:
            tail = ""
        print(
            f"{name:15} {1e3 * times[name]:7.1f} {1e3 * model:9.1f} {times['one'] / times[name]:9.2f}x"
            f" {times['one'] / model:6.2f}x {own / 1e6:11.0f} {sent / 1e6:16.1f} {tail}"
        )


class Group:
    """The processes of one layout, which answer together."""

    def __init__(self, processes: int, rows: int, hidden: int, split: str):
        context = multiprocessing.get_context("spawn")
        self._directory = tempfile.TemporaryDirectory()
        self._ends, self._processes = [], []
        for rank in range(processes):
            ours, theirs = context.Pipe()
            arguments = (theirs, rank, processes, rows, hidden, split, f"{self._directory.name}/rendezvous")
            process = context.Process(target=work, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._ends.append(ours)
            self._processes.append(process)

    def ask(self, request: str) -> float:
        """The slowest rank's seconds."""
        for end in self._ends:
            end.send(request)
        return max(end.recv() for end in self._ends)

    def close(self) -> None:
        for end in self._ends:
            end.close()
        for process in self._processes:
            process.join()
        self._directory.cleanup()


def work(end, rank: int, processes: int, rows: int, hidden: int, split: str, rendezvous: str) -> None:
    """One rank: a step is a forward and a backward; a reduction is an all_reduce of the bytes of a step."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    import torch
    import torch.distributed as distributed

    import fge
    from fge.torch import LinearAct

    torch.set_num_threads(1)
    fge.set_num_threads(1)
    distributed.init_process_group("gloo", f"file://{rendezvous}", rank=rank, world_size=processes)
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        LinearAct(IN, hidden, activation="gelu"), LinearAct(hidden, OUT, activation="none")
    )
    own_rows = rows
    if processes > 1 and split == "data":
        own_rows = rows // processes
        model = torch.nn.parallel.DistributedDataParallel(model)
    elif processes > 1:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import parallelize_module

        from fge.torch_parallel import ColwiseParallel, RowwiseParallel

        mesh = init_device_mesh("cpu", (processes,))
        parallelize_module(model, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})
    x = torch.randn(own_rows, IN, requires_grad=split == "tensor" or processes == 1)
    out_grad = torch.randn(own_rows, OUT)
    reduced = torch.zeros(reduced_bytes(rows, hidden, split) // 4)

    def step():
        model.zero_grad()
        x.grad = None
        out = model(x)
        out.backward(out_grad)
        # reductions are awaited by whoever reads their results
        for reduced_tensor in (out.detach(), x.grad):
            if reduced_tensor is not None:
                reduced_tensor[0, 0].item()

    def reduce():
        if processes > 1:
            distributed.all_reduce(reduced)

    calls = {"step": step, "reduce": reduce}
    while True:
        try:
            call = calls[end.recv()]
        except EOFError:
            break
        call()
        distributed.barrier()
        start = perf_counter()
        for _ in range(STEPS):
            call()
        end.send((perf_counter() - start) / STEPS)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
