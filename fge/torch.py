"""The fused linear layer with its activation for PyTorch on CPUs: act(x @ weight.T + bias) in one pass.

    linear_act(x, weight, bias, activation)     the function
    fused_mlp(x, w1, b1, w2, b2, activation)    two layers, act(x @ w1.T + b1) @ w2.T + b2
    fused_glu(x, w_gate, w_up)                  a gated unit, act(x @ w_gate.T) * (x @ w_up.T)
    LinearAct(in_features, out_features)        the module, with the state_dict of torch.nn.Linear
    replace_linear_act(model)                   swaps it in for each Linear and activation of a Sequential

`activation="gelu"` is the tanh form; torch.nn.GELU() is "gelu_erf" here.
"""

try:
    import torch as _framework  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"fge.torch needs PyTorch, which can't be imported ({error}): pip install torch"
    ) from error

from fge import _torch_threads
from fge._torch_function import linear_act
from fge._torch_layers import fused_glu, fused_mlp
from fge._torch_module import LinearAct
from fge._torch_replace import Replacements, replace_linear_act

__all__ = ["LinearAct", "Replacements", "fused_glu", "fused_mlp", "linear_act", "replace_linear_act"]

# Where they are imported from, and what a pickled module refers to.
for _public in (LinearAct, Replacements, fused_glu, fused_mlp, linear_act, replace_linear_act):
    _public.__module__ = __name__

_torch_threads.share()
