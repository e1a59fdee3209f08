"""The same call gives the same bits: for every number of threads, every time, whatever else runs."""

import threading

import numpy as np
import pytest
from designs import TRANSPOSITIONS
from reference import assert_all_same_bits, make_reserve, random, random_operands, rng_for

import fge

pytestmark = pytest.mark.usefixtures("path")

# None divides evenly by anything a partition might use; long sums and thin results among them.
SHAPES = (
    (257, 131, 389),
    (1000, 37, 45),
    (3, 2000, 7),
    (1, 999, 1001),
    (999, 1001, 1),
    (300, 700, 530),
    (17, 5, 4099),
    (4099, 5, 17),
)


def results_of(m, k, n, dtype, flags, activation, with_accumulators):
    """Every array that a forward and a backward return, as a tuple."""
    rng = rng_for(m, k, n, flags)
    x, y, bias = random_operands(rng, m, k, n, dtype, *flags)
    out_grad = random(rng, (m, n), dtype)
    x_reserve = make_reserve("gelu", rng.uniform(-3, 3, x.shape).astype(dtype), dtype)
    into = (
        tuple(random(rng, shape, dtype) for shape in (x.shape, y.shape, (n,)))
        if with_accumulators
        else (None,) * 3
    )
    out, reserve = fge.fused_gemm_epilogue(x, y, bias, *flags, activation)
    options = dict(x_activation="gelu", x_reserve=x_reserve, accumulate_into=into)
    return out, reserve, *fge.fused_gemm_epilogue_grad(x, y, reserve, out_grad, *flags, activation, **options)


PROBLEMS = [
    pytest.param(shape, TRANSPOSITIONS[i % 4], ("gelu", "relu")[i % 2], id="x".join(map(str, shape)))
    for i, shape in enumerate(SHAPES)
]


@pytest.mark.parametrize("with_accumulators", (False, True), ids=("fresh", "accumulated"))
@pytest.mark.parametrize("shape, flags, activation", PROBLEMS)
def test_same_bits_for_any_number_of_threads(shape, flags, activation, with_accumulators, dtype):
    problem = (*shape, dtype, flags, activation, with_accumulators)
    with fge.threads(1):
        expected = results_of(*problem)
    for threads in (2, 3, 4):
        with fge.threads(threads):
            assert_all_same_bits(results_of(*problem), expected, f"{threads} threads")


def test_same_bits_from_run_to_run(dtype):
    problem = (257, 131, 389, dtype, (False, True), "gelu", False)
    expected = results_of(*problem)
    for _ in range(5):
        assert_all_same_bits(results_of(*problem), expected)


def test_same_bits_beside_other_work(dtype):
    """Another thread multiplies matrices with numpy, and a third calls fge, meanwhile."""
    problem = (257, 131, 389, dtype, (False, False), "gelu", False)
    expected = results_of(*problem)
    stop = threading.Event()
    matrix = np.ones((200, 200))

    def until_stopped(work):
        while not stop.is_set():
            work()

    workers = [
        threading.Thread(target=until_stopped, args=(lambda: matrix @ matrix,)),
        threading.Thread(target=until_stopped, args=(lambda: fge.fused_gemm_epilogue(matrix, matrix),)),
    ]
    for worker in workers:
        worker.start()
    try:
        for _ in range(5):
            assert_all_same_bits(results_of(*problem), expected)
    finally:
        stop.set()
        for worker in workers:
            worker.join()
