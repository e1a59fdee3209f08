"""`linear_act` on DTensors: each rank makes one plain call, and torch.distributed.tensor does what lies between ranks."""

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from fge import _torch_reference
from fge._torch_function import linear_act


def linear_act_of_shards(x, weight, bias, activation):
    """act(x @ weight.T + bias) on a mesh of one dimension.

    weight Shard(0), by columns of the product: x is replicated, bias Shard(0), out Shard(-1); activation and bias are
    in the epilogue of each rank's own product.

    weight Shard(1), by terms of the sums: x is Shard(-1). Each rank's product is a part of z, the first rank's with
    the bias. Without an activation out is Partial, to be reduced by whoever wants it otherwise; with one the parts are
    reduced here, since the activation of a sum isn't the sum of activations.

    weight replicated: x may be sharded along any axis but the last, and so is out.
    """
    mesh = _mesh_of(x=x, weight=weight, bias=bias)
    (placement,) = weight.placements
    if placement.is_replicate():
        return _by_rows(x, weight, bias, activation, mesh)
    if placement.is_shard(0):
        return _by_columns(x, weight, bias, activation, mesh)
    if placement.is_shard(1):
        return _by_terms(x, weight, bias, activation, mesh)
    raise ValueError(f"weight is placed as {placement}; it must be Shard(0), Shard(1) or Replicate()")


def _mesh_of(**operands):
    mesh = None
    for name, operand in operands.items():
        if operand is None:
            continue
        if not isinstance(operand, DTensor):
            raise TypeError(
                f"{name} is a {type(operand).__name__} beside a DTensor; all operands must be DTensors of one mesh "
                "(DTensor.from_local, distribute_tensor)"
            )
        mesh = operand.device_mesh if mesh is None else mesh
        if operand.device_mesh != mesh:
            raise ValueError(f"{name} is on another device mesh than x; they must be on the same")
    if mesh.ndim != 1:
        raise ValueError(f"the device mesh has {mesh.ndim} dimensions; linear_act takes one, as mesh['tp']")
    return mesh


def _by_columns(x, weight, bias, activation, mesh):
    x = x.redistribute(placements=[Replicate()])
    bias = None if bias is None else bias.redistribute(placements=[Shard(0)]).to_local()
    # each rank has the part of x's gradient that its columns make
    out = linear_act(x.to_local(grad_placements=[Partial()]), weight.to_local(), bias, activation)
    return _placed(out, mesh, Shard(out.ndim - 1), (*x.shape[:-1], weight.shape[0]))


def _by_terms(x, weight, bias, activation, mesh):
    x = x.redistribute(placements=[Shard(x.ndim - 1)])
    if bias is not None:
        bias = bias.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])
        if mesh.get_local_rank():
            # none, and yet in the graph: all ranks take part in the reduction of its gradient
            bias = torch.where(torch.tensor(False), bias, torch.zeros_like(bias))
    z = linear_act(x.to_local(), weight.to_local(), bias)
    z = _placed(z, mesh, Partial(), z.shape)
    if activation == "none":
        return z
    out = _torch_reference.activate(z.redistribute(placements=[Replicate()]).to_local(), activation)
    return _placed(out, mesh, Replicate(), out.shape)


def _by_rows(x, weight, bias, activation, mesh):
    (placement,) = x.placements
    if placement.is_partial() or placement.is_shard(x.ndim - 1):
        placement = Replicate()
        x = x.redistribute(placements=[placement])
    # rows of one rank make a part of the parameters' gradients
    of_parameters = [placement if placement.is_replicate() else Partial()]
    parameters = [
        None
        if p is None
        else p.redistribute(placements=[Replicate()]).to_local(grad_placements=of_parameters)
        for p in (weight, bias)
    ]
    out = linear_act(x.to_local(), *parameters, activation)
    return _placed(out, mesh, placement, (*x.shape[:-1], weight.shape[0]))


def _placed(local, mesh, placement, shape):
    """The DTensor of that shape of which each rank has a part; shards may differ in size."""
    stride = [1] * len(shape)
    for i in range(len(shape) - 1, 0, -1):
        stride[i - 1] = stride[i] * max(shape[i], 1)
    return DTensor.from_local(
        local, mesh, [placement], run_check=False, shape=torch.Size(shape), stride=tuple(stride)
    )
