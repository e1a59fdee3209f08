"""Tensor parallelism for `fge.torch.LinearAct`: the styles of torch.distributed.tensor.parallel, which know
torch.nn.Linear and torch.nn.Embedding only, extended by it.

    from torch.distributed.tensor.parallel import parallelize_module
    from fge.torch_parallel import ColwiseParallel, RowwiseParallel

    parallelize_module(mlp, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})

PyTorch places the parameters and moves data between processes; each process calls the operator on its part.
"""

from functools import partial

try:
    from torch import nn
    from torch.distributed.tensor import Shard, distribute_module, parallel
except ImportError as error:
    raise ImportError(
        f"fge.torch_parallel needs PyTorch 2.5 or newer with torch.distributed ({error}): pip install torch"
    ) from error

from fge.torch import LinearAct

__all__ = ["ColwiseParallel", "RowwiseParallel"]


class ColwiseParallel(parallel.ColwiseParallel):
    """As torch.distributed.tensor.parallel.ColwiseParallel, for LinearAct too: a part of the output features to each
    process, with bias and activation in the epilogue of its product. Input is replicated, output is sharded along
    the last axis, unless the arguments say otherwise.
    """

    def _apply(self, module: nn.Module, device_mesh) -> nn.Module:
        if not isinstance(module, LinearAct):
            return super()._apply(module, device_mesh)
        return _distribute(self, module, device_mesh)


class RowwiseParallel(parallel.RowwiseParallel):
    """As torch.distributed.tensor.parallel.RowwiseParallel, for LinearAct too: a part of the input features to each
    process, whose sums are reduced. The bias is in the epilogue of the first process's product; an activation other
    than "none" comes after the reduction. Input is sharded along the last axis, output is replicated, unless the
    arguments say otherwise.
    """

    def _apply(self, module: nn.Module, device_mesh) -> nn.Module:
        if not isinstance(module, LinearAct):
            return super()._apply(module, device_mesh)
        self.desired_input_layouts = (Shard(-1),)
        return _distribute(self, module, device_mesh)


def _distribute(style, module, device_mesh):
    return distribute_module(
        module,
        device_mesh,
        style._partition_linear_fn,
        partial(style._prepare_input_fn, style.input_layouts, style.desired_input_layouts),
        partial(style._prepare_output_fn, style.output_layouts, style.use_local_output),
    )
