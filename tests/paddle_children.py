"""Programs of the Paddle tests that need a process of their own: `python paddle_children.py NAME`."""

import concurrent.futures
import importlib
import os
import resource
import sys

import numpy as np


def operands_are_not_copied():
    import paddle
    from paddle import _C_ops

    import fge.paddle  # noqa: F401

    rows, k = 1 << 16, 1 << 10
    x = paddle.ones([rows, k])
    x.stop_gradient = False
    size = rows * k * 4

    def peak():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    _C_ops.fused_gemm_epilogue(x[:8], paddle.ones([k, 8]), paddle.ones([8]), False, False, "relu")
    for n in (8, 7):
        y, bias = paddle.ones([k, n]), paddle.ones([n])
        before = peak()
        out, _ = _C_ops.fused_gemm_epilogue(x, y, bias, False, False, "relu")
        assert peak() - before < size / 4, (n, peak() - before)
        assert np.shares_memory(np.from_dlpack(out.detach()), np.from_dlpack(out.detach()))
        y.stop_gradient = False
        before = peak()
        out, _ = _C_ops.fused_gemm_epilogue(x.detach(), y, bias, False, False, "relu")
        out.sum().backward()
        assert peak() - before < size / 4, (n, peak() - before)


def column_parallel_linear():
    import paddle
    from paddle.distributed import fleet

    import fge.paddle  # noqa: F401

    strategy = fleet.DistributedStrategy()
    strategy.hybrid_configs = {"dp_degree": 1, "mp_degree": 1, "pp_degree": 1}
    os.environ.setdefault("PADDLE_TRAINERS_NUM", "1")
    fleet.init(is_collective=True, strategy=strategy)
    fused = fleet.meta_parallel.ColumnParallelLinear(
        6, 5, has_bias=True, gather_output=True, fuse_matmul_bias=True
    )
    x = paddle.rand([3, 6])
    out = fused(x)
    out.sum().backward()
    expected = x.numpy() @ fused.weight.numpy() + fused.bias.numpy()
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(fused.bias.grad.numpy(), np.full(5, 3.0))


def column_parallel_of_two(rank, port):
    """One of two processes, each with half of the columns, by gloo: values and gradients are those of one.

    c_identity has no kernel for CPUs, and mp_skip_c_identity (which asks for mp_async_allreduce) does without it.
    """
    rank, port = int(rank), int(port)
    endpoints = [f"127.0.0.1:{port + 1}", f"127.0.0.1:{port + 2}"]
    os.environ.update(
        PADDLE_TRAINER_ID=str(rank),
        PADDLE_TRAINERS_NUM="2",
        PADDLE_TRAINER_ENDPOINTS=",".join(endpoints),
        PADDLE_CURRENT_ENDPOINT=endpoints[rank],
        PADDLE_MASTER=f"127.0.0.1:{port}",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        PADDLE_DISTRI_BACKEND="gloo",
    )
    import paddle
    from paddle.distributed import fleet

    import fge.paddle  # noqa: F401

    strategy = fleet.DistributedStrategy()
    options = {"mp_async_allreduce": True, "mp_skip_c_identity": True}
    strategy.hybrid_configs = {"dp_degree": 1, "mp_degree": 2, "pp_degree": 1, "mp_configs": options}
    fleet.init(is_collective=True, strategy=strategy)
    assert paddle.distributed.get_world_size() == 2

    rng = np.random.default_rng(0)
    x, weight, bias, out_grad = (rng.standard_normal(s) for s in ((3, 6), (6, 10), (10,), (3, 10)))
    half = slice(5 * rank, 5 * rank + 5)
    paddle.set_default_dtype("float64")
    layer = fleet.meta_parallel.ColumnParallelLinear(
        6, 10, has_bias=True, gather_output=False, fuse_matmul_bias=True
    )
    layer.weight.set_value(weight[:, half])
    layer.bias.set_value(bias[half])
    x_ = paddle.to_tensor(x, stop_gradient=False)
    out = layer(x_)
    out.backward(paddle.to_tensor(out_grad[:, half]))
    for value, expected in (
        (out, (x @ weight + bias)[:, half]),
        (x_.grad, out_grad @ weight.T),
        (layer.weight.grad, (x.T @ out_grad)[:, half]),
        (layer.bias.grad, out_grad.sum(0)[half]),
    ):
        np.testing.assert_allclose(value.numpy(), expected, rtol=1e-12, atol=1e-13)


def load_saved_program(path, backend, *expected):
    """Runs a saved program with the backend, or shows that Paddle refuses it without."""
    if backend:
        importlib.import_module(backend)
    import paddle

    program = paddle.jit.load(path)
    x = paddle.to_tensor(np.load(path + ".npy"))
    try:
        out = program(x)
    except RuntimeError as error:
        assert not backend and "fused_gemm_epilogue" in str(error), error
        return
    assert backend, "ran without the backend"
    np.testing.assert_allclose(
        out.numpy().ravel()[: len(expected)], [float(e) for e in expected], rtol=1e-4, atol=1e-5
    )


def concurrent_callers():
    """Eight threads, each with shapes of its own: every result is that of the thread alone."""
    import paddle
    from paddle.incubate.nn.functional import fused_linear_activation

    import fge.paddle  # noqa: F401

    def results(seed):
        rng = np.random.default_rng(seed)
        m, k, n = 16 + 8 * seed, 32, (128, 24, 7)[seed % 3]
        arrays = [rng.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n), (n,))]
        tensors = [paddle.to_tensor(a, stop_gradient=False) for a in arrays]
        out = fused_linear_activation(*tensors, activation=("relu", "gelu")[seed % 2])
        out.backward(out.detach())
        return [out.numpy(), *(t.grad.numpy() for t in tensors)]

    alone = [results(seed) for seed in range(8)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for seed, together in enumerate(pool.map(results, list(range(8)) * 50)):
            for one, other in zip(together, alone[seed % 8]):
                assert np.array_equal(one, other), seed


def fork_after_use():
    """A child that is forked after the parent's calls makes its own."""
    import paddle
    from paddle import _C_ops

    import fge.paddle  # noqa: F401

    x, y, bias = paddle.ones([512, 64]), paddle.ones([64, 128]), paddle.ones([128])

    def works():
        return all(
            float(_C_ops.fused_gemm_epilogue(x, y, bias, False, False, name)[0][511, 127]) == 65
            for name in ("none", "relu")
        )

    assert works()
    child = os.fork()
    if child == 0:
        os._exit(0 if works() else 1)
    assert os.waitpid(child, 0)[1] == 0


def no_call_ends_the_process():
    """Forks before each call, so that one that aborts takes nobody with it."""
    import paddle_bad_calls

    import fge.paddle  # noqa: F401

    for call in paddle_bad_calls.CALLS + paddle_bad_calls.ODD_CALLS:
        child = os.fork()
        if child == 0:
            try:
                call.run()
                code = 1 if call.error else 0
            except BaseException as error:  # noqa: BLE001 (whatever it is, the child must end)
                code = 0 if call.error and isinstance(error, call.error) else 2
                if code:
                    print(call.name, repr(error), file=sys.stderr, flush=True)
            os._exit(code)
        status = os.waitpid(child, 0)[1]
        assert status == 0, f"{call.name}: wait status {status}"


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
