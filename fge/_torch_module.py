"""`LinearAct`, the module."""

from __future__ import annotations

import math

import torch

from fge import _torch
from fge._torch_function import linear_act


class LinearAct(torch.nn.Module):
    """A linear layer and its activation in one pass: `act(x @ weight.T + bias)`.

    Parameters, their initial values (by the same random numbers) and the state_dict are those of
    `torch.nn.Linear(in_features, out_features, bias, device, dtype)`.

    It is no subclass of `torch.nn.Linear`: code that takes every Linear apart or replaces it would lose the
    activation without a word.

    Parameters
    ----------
    in_features, out_features : int
    bias : False for a layer without one
    activation : one of `fge.activations()`; "gelu" is the tanh form, "gelu_erf" is torch.nn.GELU()
    device, dtype : of the parameters; float32, float64, float16 or bfloat16

    Input is [.., in_features] of the parameters' dtype, output [.., out_features]; see `linear_act`.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        activation: str = "relu",
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        _torch.check_activation(activation)
        self.in_features = in_features
        self.out_features = out_features
        self.activation = activation
        self.weight = torch.nn.Parameter(torch.empty(out_features, in_features, device=device, dtype=dtype))
        self.register_parameter(
            "bias",
            torch.nn.Parameter(torch.empty(out_features, device=device, dtype=dtype)) if bias else None,
        )
        self.reset_parameters()

    @classmethod
    def from_linear(cls, linear: torch.nn.Linear, activation: str) -> LinearAct:
        """A layer on the parameters of a `torch.nn.Linear`: the same objects, not copies."""
        layer = cls(0, 0, False, activation, device="meta")
        layer.in_features, layer.out_features = linear.in_features, linear.out_features
        layer.weight, layer.bias = linear.weight, linear.bias
        return layer.train(linear.training)

    def reset_parameters(self) -> None:
        """Draw the parameters anew, as `torch.nn.Linear.reset_parameters` does: all within 1 / sqrt(in_features)."""
        if self.weight.numel():
            torch.nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            bound = 1 / math.sqrt(self.in_features) if self.in_features else 0
            torch.nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return linear_act(x, self.weight, self.bias, self.activation)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, "
            f"activation={self.activation!r}"
        )
