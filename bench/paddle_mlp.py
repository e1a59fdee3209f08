"""What fge.paddle costs and gains: ``python -m bench.paddle_mlp``.

Training: the time of a step (forward, backward, SGD) of a two-layer network of ``fused_linear_activation`` and
``fused_linear`` over that of the same network of Paddle's linear and activation. Each network runs in a process of
its own, and the two take turns, so that neither waits for the other's idle threads and both meet the same
neighbours. A ratio is the median over rounds of plain / fused within the round. The losses are compared first.

Calls: the time of one small call through Paddle's entry points, of one with no rows, for which the core has
nothing to do (what Paddle's dispatch and the checks cost), of the numpy operator, and of Paddle's own operators.
"""

from __future__ import annotations

import argparse
import os
import warnings
from statistics import median

import numpy as np

from bench.turns import Contenders, answer, seconds_per_call, seconds_per_step

#: (rows, inputs, hidden, outputs)
NETWORKS = ((512, 768, 3072, 768), (2048, 64, 256, 64), (64, 128, 256, 10))
SLICE_SECONDS = 0.5
LOSSES_COMPARED = 20
KINDS = ("plain", "fused")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, nargs="+", default=sorted({1, len(os.sched_getaffinity(0))}))
    asked = parser.parse_args()
    print("training step, float32                  plain ms  fused ms  plain / fused   losses differ by")
    for threads in asked.threads:
        for activation in ("relu", "gelu"):
            for network in NETWORKS:
                print(training(network, activation, threads, asked.rounds), flush=True)
    print("\none call, (8, 4) x (4, N), float32, no gradient, one thread        us")
    for name, microseconds in call_costs(asked.rounds):
        print(f"{name:64} {microseconds:6.1f}")


def training(network: tuple[int, ...], activation: str, threads: int, rounds: int) -> str:
    """One row of the table."""
    with Contenders(train, KINDS, network, activation, threads) as contenders:
        losses = contenders.ask("losses")
        seconds = [contenders.ask("seconds") for _ in range(rounds)]
    difference = np.max(np.abs(np.divide(losses["fused"], losses["plain"]) - 1))
    plain, fused = (1e3 * median(of_round[kind] for of_round in seconds) for kind in KINDS)
    ratio = median(of_round["plain"] / of_round["fused"] for of_round in seconds)
    label = f"{'x'.join(map(str, network))} {activation}, {threads} threads"
    return f"{label:38} {plain:9.2f} {fused:9.2f} {ratio:10.2f}x {difference:18.1e}"


def train(end, kind: str, network: tuple[int, ...], activation: str, threads: int) -> None:
    """A worker: it answers with the first losses, and with the seconds per step of a slice."""
    paddle = load_paddle(threads)
    functional = paddle.nn.functional
    from paddle.incubate.nn.functional import fused_linear, fused_linear_activation

    rows, inputs, hidden, outputs = network
    rng = np.random.default_rng(0)
    x = paddle.to_tensor(rng.standard_normal((rows, inputs), dtype=np.float32))
    target = paddle.to_tensor(rng.standard_normal((rows, outputs), dtype=np.float32))

    def parameter(*shape):
        values = rng.standard_normal(shape, dtype=np.float32) / np.float32(shape[0]) ** 0.5
        return paddle.create_parameter(
            list(shape), "float32", default_initializer=paddle.nn.initializer.Assign(values)
        )

    w1, b1, w2, b2 = (
        parameter(inputs, hidden),
        parameter(hidden),
        parameter(hidden, outputs),
        parameter(outputs),
    )
    optimizer = paddle.optimizer.SGD(0.01, parameters=[w1, b1, w2, b2])

    def plain():
        z = functional.linear(x, w1, b1)
        h = functional.relu(z) if activation == "relu" else functional.gelu(z, approximate=True)
        return functional.linear(h, w2, b2)

    def fused():
        return fused_linear(fused_linear_activation(x, w1, b1, activation=activation), w2, b2)

    network_of_kind = {"plain": plain, "fused": fused}[kind]

    def step():
        loss = (network_of_kind() - target).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        return loss

    answer(
        end,
        losses=lambda: [float(step()) for _ in range(LOSSES_COMPARED)],
        seconds=lambda: seconds_per_step(step, SLICE_SECONDS),
    )


def load_paddle(threads: int):
    """Paddle with the backend, both with a number of threads. (Paddle's own default is one.)"""
    warnings.simplefilter("ignore")
    import paddle

    import fge
    import fge.paddle

    fge.set_num_threads(threads)
    paddle.base.core.set_num_threads(threads)
    return paddle


def call_costs(rounds: int) -> list[tuple[str, float]]:
    """(what, microseconds), the calls taking turns."""
    paddle = load_paddle(1)
    import fge

    functional = paddle.nn.functional
    x, none = paddle.ones([8, 4]), paddle.ones([0, 4])
    y, bias = paddle.ones([4, 128]), paddle.ones([128])
    odd_y, odd_bias = paddle.ones([4, 127]), paddle.ones([127])
    arrays = tuple(t.numpy() for t in (x, y, bias))
    forward = paddle._C_ops.fused_gemm_epilogue
    wanting = [t.clone().detach() for t in (x, y, bias, none, odd_y, odd_bias)]
    for tensor in wanting:
        tensor.stop_gradient = False
    gx, gy, gbias, gnone, godd_y, godd_bias = wanting
    out_grad, no_grad, odd_grad = paddle.ones([8, 128]), paddle.ones([0, 128]), paddle.ones([8, 127])

    calls = {
        "operator, relu, N = 128": lambda: forward(x, y, bias, False, False, "relu"),
        "operator, relu, N = 128, no rows: dispatch alone": lambda: forward(
            none, y, bias, False, False, "relu"
        ),
        "operator, relu, N = 127 (past Paddle's shape inference)": lambda: forward(
            x, odd_y, odd_bias, False, False, "relu"
        ),
        "numpy operator, relu, N = 128": lambda: fge.fused_gemm_epilogue(*arrays, False, False, "relu"),
        "Paddle's linear + relu, N = 128": lambda: functional.relu(functional.linear(x, y, bias)),
        "with backward: operator, relu, N = 128": lambda: forward(gx, gy, gbias, False, False, "relu")[
            0
        ].backward(out_grad),
        "with backward: operator, relu, no rows: dispatch alone": lambda: forward(
            gnone, gy, gbias, False, False, "relu"
        )[0].backward(no_grad),
        "with backward: operator, relu, N = 127": lambda: forward(
            gx, godd_y, godd_bias, False, False, "relu"
        )[0].backward(odd_grad),
        "with backward: Paddle's linear + relu, N = 128": lambda: functional.relu(
            functional.linear(gx, gy, gbias)
        ).backward(out_grad),
    }
    seconds = {name: [] for name in calls}
    for _ in range(3 * rounds):
        for name, call in calls.items():
            seconds[name].append(seconds_per_call(call))
    return [(name, 1e6 * median(values)) for name, values in seconds.items()]


if __name__ == "__main__":
    main()
