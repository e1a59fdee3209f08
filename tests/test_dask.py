"""fge.dask: the values of the operator on whole arrays, whatever the chunks; errors; a cluster with bounded memory."""

import numpy as np
import pytest

da = pytest.importorskip("dask.array")

import dask
import reference
from activation_table import ACTIVATIONS

import fge
import fge.dask

EVERY_ACTIVATION = pytest.mark.parametrize("activation", ACTIVATIONS)
FLOAT32 = np.dtype(np.float32)
M, K, N = 50, 12, 300


def operands(dtype=FLOAT32, m=M, k=K, n=N):
    rng = reference.rng_for("dask", dtype, m, k, n)
    return [reference.random(rng, shape, dtype) for shape in ((m, k), (k, n), (n,), (m, n))]


def turned(array, turn):
    return array.T if turn else array


def computed(*lazy):
    with dask.config.set(scheduler="threads"):
        return dask.compute(*lazy)


@pytest.mark.parametrize("trans_x, trans_y", ((False, False), (True, False), (False, True), (True, True)))
@pytest.mark.parametrize("chunks", ((50, 300), (7, 300), (16, 128), (50, 77)), ids=str)
@EVERY_ACTIVATION
def test_equals_the_operator_on_the_whole(activation, chunks, trans_x, trans_y, dtype):
    """Out has the bits of a call for the chunk; sums over chunks are within their bound."""
    x, y, bias, out_grad = operands(dtype)
    rows, columns = chunks
    lazy_x = da.from_array(
        turned(x, trans_x), turned(np.array([rows, K]), False).tolist()[:: -1 if trans_x else 1]
    )
    lazy_y = da.from_array(turned(y, trans_y), [K, columns][:: -1 if trans_y else 1])
    lazy_bias, lazy_grad = da.from_array(bias, columns), da.from_array(out_grad, (20, 100))
    out, reserve = fge.dask.fused_gemm_epilogue(lazy_x, lazy_y, lazy_bias, trans_x, trans_y, activation)
    grads = fge.dask.fused_gemm_epilogue_grad(
        lazy_x, lazy_y, reserve, lazy_grad, trans_x, trans_y, activation
    )
    assert out.shape == (M, N) and out.dtype == dtype and out.chunksize == (min(rows, M), min(columns, N))
    values = computed(out, *grads)
    for lazy, value in zip((out, *grads), values):
        assert lazy.shape == value.shape and lazy.dtype == value.dtype
    reference.assert_within(values[0], reference.forward(x, y, bias, activation=activation).out)
    _, whole = fge.fused_gemm_epilogue(x, y, bias, activation=activation)
    expected = reference.backward(x, y, whole, out_grad, activation=activation)
    for value, bounded, turn in zip(values[1:], expected, (trans_x, trans_y, False)):
        bounded.bound *= 2  # out of which the reserve comes is summed in another order
        bounded.bound += 32 * reference.epsilon(dtype)
        reference.assert_within(turned(value, turn), bounded)


def test_bits_are_those_of_the_whole_where_chunks_are_of_128():
    x, y, bias, _ = operands()
    lazy = da.from_array(x, (7, K)), da.from_array(y, (K, 128)), bias
    _, reserve = fge.dask.fused_gemm_epilogue(*lazy, activation="relu")
    _, whole = fge.fused_gemm_epilogue(x, y, bias, activation="relu")
    reference.assert_same_bits(computed(reserve)[0], whole)


def test_shared_operands_and_bias_of_numpy():
    x, y, bias, out_grad = operands()
    out, reserve = fge.dask.fused_gemm_epilogue(da.from_array(x, (7, K)), y, bias, activation="gelu")
    grads = fge.dask.fused_gemm_epilogue_grad(
        da.from_array(x, (7, K)),
        y,
        reserve,
        da.from_array(out_grad, (7, N)),
        activation="gelu",
        needs=(True, True, False),
    )
    assert grads[2] is None
    value, x_grad, _ = computed(out, *grads[:2])
    whole, kept = fge.fused_gemm_epilogue(x, y, bias, activation="gelu")
    reference.assert_within(value, reference.forward(x, y, bias, activation="gelu").out)
    expected, *_ = reference.backward(x, y, kept, out_grad, activation="gelu")
    reference.assert_within(x_grad, expected)


def test_is_lazy_with_one_task_a_chunk():
    calls = []

    def loaded(block):
        calls.append(block.shape)
        return block

    x = da.map_blocks(loaded, da.ones((40, 8), chunks=(10, 8)), dtype=float, meta=np.empty((0, 0)))
    out, _ = fge.dask.fused_gemm_epilogue(x, np.ones((8, 6)), activation="relu")
    assert calls == []
    tasks = [key for key in out.__dask_graph__() if "_forward" in str(key) or "partial" in str(key)]
    assert len(tasks) == 4
    assert computed(out)[0].shape == (40, 6)
    assert len(calls) == 4


def test_the_order_of_sums_is_that_of_the_chunks():
    x, y, _, out_grad = operands(m=400)
    lazy = da.from_array(x, (10, K)), y
    _, reserve = fge.dask.fused_gemm_epilogue(*lazy, activation="gelu")
    results = []
    for scheduler in ("threads", "synchronous", "threads"):
        grads = fge.dask.fused_gemm_epilogue_grad(
            *lazy, reserve, da.from_array(out_grad, (10, N)), activation="gelu"
        )
        results.append(dask.compute(*grads, scheduler=scheduler))
    for other in results[1:]:
        reference.assert_all_same_bits(other, results[0])


def test_empty():
    x = da.ones((0, 4), chunks=(5, 4), dtype=FLOAT32)
    out, reserve = fge.dask.fused_gemm_epilogue(x, np.ones((4, 3), FLOAT32), activation="gelu")
    grads = fge.dask.fused_gemm_epilogue_grad(
        x, np.ones((4, 3), FLOAT32), reserve, da.ones((0, 3), dtype=FLOAT32), activation="gelu"
    )
    values = computed(out, *grads)
    assert [value.shape for value in values] == [(0, 3), (0, 4), (4, 3), (3,)]
    assert not values[2].any()


def test_errors():
    x, y, bias, out_grad = operands()
    lazy, grad = da.from_array(x, (7, K)), da.from_array(out_grad, (7, N))
    forward, backward = fge.dask.fused_gemm_epilogue, fge.dask.fused_gemm_epilogue_grad
    for call, error, text in (
        (lambda: forward(x, y), TypeError, "x is a ndarray; it must be a dask array"),
        (lambda: forward(lazy, [1]), TypeError, "y is a list"),
        (lambda: forward(lazy, y.T), ValueError, "K is 12 in x and 300 in y"),
        (lambda: forward(lazy, y[0]), ValueError, "rank 2"),
        (lambda: forward(lazy.reshape(5, 10, K), y), ValueError, r"reshape\(-1, 12\)"),
        (lambda: forward(lazy, y.astype(float)), TypeError, "float64"),
        (lambda: forward(lazy, y, bias[:-1]), ValueError, r"bias has shape \(299,\)"),
        (lambda: forward(lazy, y, activation="swish"), ValueError, "'swish'"),
        (lambda: forward(lazy[lazy[:, 0] > 0], y), ValueError, "compute_chunk_sizes"),
        (lambda: backward(lazy, y, None, grad, activation="gelu"), ValueError, "save_reserve=False"),
        (lambda: backward(lazy, y, None, grad[:, 1:]), ValueError, "out_grad has shape"),
        (lambda: backward(lazy, y, None, out_grad), TypeError, "out_grad is a ndarray"),
        (lambda: backward(lazy, y, grad.rechunk(10), grad, activation="gelu"), ValueError, "blocks"),
        (lambda: backward(lazy, y, None, grad, needs=(True,)), ValueError, "needs"),
    ):
        with pytest.raises(error, match=text):
            call()


def test_a_cluster_takes_more_than_its_memory(tmp_path):
    """X is a file twice as large as what the workers may hold."""
    distributed = pytest.importorskip("distributed")
    m, k, n = 1 << 17, 512, 64  # 256 MiB
    path = tmp_path / "x.npy"
    x = np.lib.format.open_memmap(path, "w+", np.float32, (m, k))
    x[:] = np.linspace(-1, 1, k, dtype=np.float32)
    x.flush()
    del x

    def rows(start, stop):
        return np.asarray(np.load(path, mmap_mode="r")[start:stop])

    step = 1 << 12
    lazy = da.concatenate(
        [da.from_delayed(dask.delayed(rows)(i, i + step), (step, k), np.float32) for i in range(0, m, step)]
    )
    y = np.full((k, n), 0.5, np.float32)
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, memory_limit="384MiB", dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        threads = client.run(lambda: __import__("fge").get_num_threads())
        assert set(threads.values()) == {1}  # dask.distributed sets OMP_NUM_THREADS
        out, reserve = fge.dask.fused_gemm_epilogue(lazy, y, activation="relu")
        total = out.sum(dtype=np.float64)
        _, y_grad, bias_grad = fge.dask.fused_gemm_epilogue_grad(
            lazy, y, reserve, da.ones((m, n), chunks=(step, n), dtype=np.float32), activation="relu"
        )
        total, y_grad, bias_grad = client.gather(client.compute([total, y_grad, bias_grad]))
        assert all(worker["status"] == "running" for worker in client.scheduler_info()["workers"].values())
    row = np.linspace(-1, 1, k, dtype=np.float32)
    whole, kept = fge.fused_gemm_epilogue(row[None], y, activation="relu")
    assert total == pytest.approx(m * whole.sum(dtype=np.float64), abs=1e-3 * m)
    bits = fge.unpack_relu_bits(kept, n)[0]
    np.testing.assert_array_equal(bias_grad, np.where(bits, m, 0).astype(np.float32))
    np.testing.assert_allclose(y_grad, m * row[:, None] * bits, rtol=1e-4, atol=1)
