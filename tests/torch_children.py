"""Programs of the PyTorch tests that need a process of their own: `python torch_children.py NAME`."""

import concurrent.futures
import importlib
import itertools
import os
import resource
import sys


def network(torch, fused, dtype=None):
    """Two layers, their parameters the same each time."""
    from fge.torch import replace_linear_act

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 256), torch.nn.GELU(), torch.nn.Linear(256, 8)).to(dtype)
    if fused:
        assert replace_linear_act(model).swapped
    return model


def operands_are_not_copied():
    """Neither contiguous ones nor those with strides, by the forward or the backward."""
    import torch

    from fge.torch import linear_act

    rows, k = 1 << 16, 1 << 10
    weight = torch.ones(8, k)
    linear_act(torch.ones(64, k), weight, None, "relu")
    size = rows * k * 4
    wide, tall = torch.ones(rows, k + 1), torch.ones(k, rows)
    layouts = {
        "contiguous": wide.flatten()[: rows * k].view(rows, k),
        "rows apart": wide[:, :k],
        "transposed": tall.T,
        "rank 4": wide.flatten()[: rows * k].view(16, 64, rows >> 10, k),
        "expanded": torch.ones(1, k).expand(rows, k),
    }

    def peak():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    before = peak()
    for name, x in layouts.items():
        out = linear_act(x, weight, None, "relu")
        out = linear_act(x, weight.requires_grad_(), None, "relu")
        out.sum().backward()
        assert peak() - before < size / 4, (name, peak() - before)


def reserve_is_all_that_is_saved():
    """What a training forward keeps alive beyond its result: bits for relu, z for gelu, nothing for tanh."""
    import torch

    from fge.torch import LinearAct

    rows, n = 4096, 4096
    x = torch.ones(rows, 16)

    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    for activation, extra in (("relu", 1 / 32), ("gelu", 1), ("tanh", 0)):
        layer = LinearAct(16, n, activation=activation)
        layer(x)
        before = resident()
        out = layer(x)
        kept = (resident() - before) / (rows * n * 4)
        assert abs(kept - 1 - extra) < 0.02, (activation, kept)
        del out


def concurrent_callers():
    """Eight threads, each with a network of its own: every result is that of the thread alone."""
    import torch

    def results(seed):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(16 + 24 * seed, 32, generator=generator)
        model = models[seed]
        return torch.autograd.grad(model(x).square().sum(), model.parameters())

    models = [network(torch, True) for _ in range(8)]
    alone = [results(seed) for seed in range(8)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for seed, together in enumerate(pool.map(results, list(range(8)) * 40)):
            assert all(map(torch.equal, together, alone[seed % 8])), seed


def same_threads_as_torch(when):
    """Calls run on PyTorch's OpenMP threads and leave their number alone, also where fge was used before."""
    if when == "late":
        import numpy as np

        import fge

        fge.fused_gemm_epilogue(np.ones((600, 600)), np.ones((600, 600)))
    import torch

    import fge
    from fge.torch import linear_act

    before = torch.get_num_threads()
    x = torch.ones(512, 512)
    for _ in range(20):
        assert linear_act(x, x)[0, 0] == 512 and (x @ x)[0, 0] == 512
    assert torch.get_num_threads() == before
    assert fge.config()["threads"]["run on"] == "the loaded OpenMP runtime"
    torch.set_num_threads(1)
    assert linear_act(x, x)[511, 511] == 512


def fork_after_use():
    """A child that is forked after the parent trained makes calls of its own.

    Ours only: PyTorch's operators hang there on GNU OpenMP as soon as they would use threads, and its autograd
    refuses to run in a fork of a process that ran it.
    """
    import torch

    model = network(torch, True)
    x = torch.ones(512, 32)

    def grads():
        return torch.autograd.grad(model(x).sum(), model.parameters())

    expected = grads()
    with torch.no_grad():
        corner = float(model[0](x)[511, 255])
        child = os.fork()
        if child == 0:
            os._exit(0 if float(model[0](x)[511, 255]) == corner else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert all(map(torch.equal, grads(), expected))


def data_loader():
    """Workers of a DataLoader, forked after the parent trained, call the layer to prepare samples."""
    import torch

    from fge.torch import linear_act

    weight = torch.ones(256, 128)

    class Samples(torch.utils.data.Dataset):
        def __len__(self):
            return 12

        def __getitem__(self, i):
            return linear_act(torch.full((300, 128), float(i)), weight, None, "relu").mean()

    model = network(torch, True)
    for _ in range(2):
        model(torch.ones(600, 32)).sum().backward()
        loader = torch.utils.data.DataLoader(Samples(), batch_size=4, num_workers=2)
        assert torch.cat(list(loader)).tolist() == [128.0 * i for i in range(12)]


def join(distributed, rank, rendezvous):
    """Be one of two processes on gloo."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    distributed.init_process_group("gloo", f"file://{rendezvous}", rank=int(rank), world_size=2)


def leave(distributed):
    """End the process, its checks done.

    At once, since PyTorch 2.13 aborts now and then ("terminate called without an active exception") while a process
    that used gloo takes itself apart; a program of PyTorch alone does so too.
    """
    distributed.barrier()
    distributed.destroy_process_group()
    os._exit(0)


def data_parallel(rank, rendezvous):
    """One of two processes, each with half of the batch: they get the gradients of one with all of it."""
    import torch
    import torch.distributed as distributed

    rank = int(rank)
    generator = torch.Generator().manual_seed(1)
    x, target = (torch.randn(64, n, generator=generator, dtype=torch.float64) for n in (32, 8))
    alone = network(torch, True, torch.float64)
    torch.nn.functional.mse_loss(alone(x), target).backward()

    join(distributed, rank, rendezvous)
    shared = torch.nn.parallel.DistributedDataParallel(network(torch, True, torch.float64))
    half = slice(32 * rank, 32 * (rank + 1))
    torch.nn.functional.mse_loss(shared(x[half]), target[half]).backward()
    for parameter, expected in zip(shared.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, expected.grad, rtol=1e-12, atol=1e-14)
    leave(distributed)


def tensor_parallel(rank, rendezvous):
    """One of two processes, each with a part of each layer: values and gradients are those of one with the whole.

    The first layer is cut by columns, with its activation fused; the second by terms of its sums. Widths of 37 and
    of 5 don't divide evenly.
    """
    import torch
    import torch.distributed as distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate
    from torch.distributed.tensor.parallel import parallelize_module

    from fge.torch import LinearAct
    from fge.torch_parallel import ColwiseParallel, RowwiseParallel

    join(distributed, rank, rendezvous)
    mesh = init_device_mesh("cpu", (2,))

    def whole(tensor):
        if isinstance(tensor, DTensor):
            tensor = tensor.redistribute(placements=[Replicate()]).to_local()
        return tensor

    cases = itertools.product(
        (torch.float64, torch.float32), (64, 37), ("relu", "gelu", "tanh"), ("none", "silu"), (True, False)
    )
    for dtype, hidden, first, second, bias in cases:
        results = []
        for parallel in (False, True):
            torch.manual_seed(0)
            model = torch.nn.Sequential(
                LinearAct(12, hidden, bias, first, dtype=dtype),
                LinearAct(hidden, 5, bias, second, dtype=dtype),
            )
            x = torch.randn(2, 9, 12, dtype=dtype, requires_grad=True)
            if parallel:
                parallelize_module(
                    model, mesh, {"0": ColwiseParallel(use_local_output=False), "1": RowwiseParallel()}
                )
                assert model[0].weight.to_local().shape[0] in (hidden // 2, hidden - hidden // 2)
            out = model(x)
            out.square().sum().backward()
            results.append([out, x.grad, *(parameter.grad for parameter in model.parameters())])
        tolerance = {torch.float64: 1e-12, torch.float32: 1e-5}[dtype]
        for one, two in zip(*results):
            two = whole(two)
            assert (one - two).norm() <= tolerance * one.norm(), (dtype, hidden, first, second, bias)
    leave(distributed)


def sharded_operands(rank, rendezvous):
    """linear_act on DTensors of every placement has values and gradients of the whole; what can't be is refused."""
    import torch
    import torch.distributed as distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

    from fge.torch import linear_act

    join(distributed, rank, rendezvous)
    mesh = init_device_mesh("cpu", (2,))
    torch.manual_seed(0)
    plain = [torch.randn(shape, dtype=torch.float64) for shape in ((3, 7, 6), (5, 6), (5,))]
    out_grad = torch.randn(3, 7, 5, dtype=torch.float64)
    for of_x, of_weight, of_bias, activation in itertools.product(
        (Replicate(), Shard(0), Shard(1), Shard(2)),
        (Replicate(), Shard(0), Shard(1)),
        (Replicate(), Shard(0)),
        ("none", "gelu"),
    ):
        alone = [t.clone().requires_grad_() for t in plain]
        expected = linear_act(*alone, activation)
        expected.backward(out_grad)
        shards = [
            distribute_tensor(t, mesh, [placement]).requires_grad_()
            for t, placement in zip(plain, (of_x, of_weight, of_bias))
        ]
        out = linear_act(*shards, activation)
        assert isinstance(out, DTensor) and out.shape == expected.shape
        out.redistribute(placements=[Replicate()]).backward(distribute_tensor(out_grad, mesh, [Replicate()]))
        for one, other in zip((expected, *(t.grad for t in alone)), (out, *(t.grad for t in shards))):
            torch.testing.assert_close(other.full_tensor(), one, rtol=1e-12, atol=1e-13)
    x, weight, bias = (distribute_tensor(t, mesh, [Replicate()]) for t in plain)
    part = DTensor.from_local(plain[1], mesh, [Partial()], run_check=False)
    for call, error, text in (
        (lambda: linear_act(plain[0], weight), TypeError, "x is a Tensor beside a DTensor"),
        (lambda: linear_act(x, plain[1]), TypeError, "weight is a Tensor"),
        (lambda: linear_act(x, part), ValueError, "weight is placed as"),
        (lambda: linear_act(x, weight, bias, "swish"), ValueError, "swish"),
    ):
        try:
            call()
        except error as raised:
            assert text in str(raised), raised
        else:
            raise AssertionError(text)
    leave(distributed)


USES = {
    "fge": "fge.fused_gemm_epilogue(np.ones((600, 64)), np.ones((64, 600)), activation='relu')[0][599, 0] == 64",
    "torch": "float((torch.ones(600, 64) @ torch.ones(64, 600))[599, 0]) == 64",
    "paddle": "float(paddle.matmul(paddle.ones([600, 64]), paddle.ones([64, 600]))[599, 0]) == 64",
    "fge.torch": "float(fge.torch.linear_act(torch.ones(600, 64), torch.ones(600, 64), None, 'relu')[599, 0]) == 64",
}


def import_order(*names):
    """Each library works after the others, in turns."""
    space = {}
    for name in names:
        exec(f"import {name}", space)
    exec("import numpy as np, torch", space)
    for _, name in itertools.product(range(30), names):
        assert eval(USES[name], space), name


def missing_torch():
    sys.modules["torch"] = None
    import fge

    try:
        importlib.import_module("fge.torch")
    except ImportError as error:
        assert "pip install torch" in str(error), error
    else:
        raise AssertionError("imported")
    assert fge.fused_gemm_epilogue is not None


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
