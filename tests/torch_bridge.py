"""numpy arrays as PyTorch tensors and back, bfloat16 included, and what PyTorch itself computes."""

import ml_dtypes
import numpy as np
import torch
from torch.nn import functional

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)

# What fge's names mean in PyTorch, written down apart from the package.
ACTIVATIONS = {
    "none": lambda z: z,
    "relu": functional.relu,
    "gelu": lambda z: functional.gelu(z, approximate="tanh"),
    "gelu_erf": functional.gelu,
    "silu": functional.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "leaky_relu": functional.leaky_relu,
    "relu6": functional.relu6,
    "clamp": functional.hardtanh,
    "sqrelu": lambda z: functional.relu(z).square(),
    "hardswish": functional.hardswish,
    "leaky_relu(0.3)": lambda z: functional.leaky_relu(z, 0.3),
    "clamp(-0.5, 20)": lambda z: functional.hardtanh(z, -0.5, 20.0),
}
ACTIVATION_MODULES = {
    "relu": torch.nn.ReLU(),
    "gelu": torch.nn.GELU(approximate="tanh"),
    "gelu_erf": torch.nn.GELU(),
    "silu": torch.nn.SiLU(),
    "sigmoid": torch.nn.Sigmoid(),
    "tanh": torch.nn.Tanh(),
    "leaky_relu(0.01)": torch.nn.LeakyReLU(),
    "leaky_relu(0.3)": torch.nn.LeakyReLU(0.3),
    "relu6": torch.nn.ReLU6(),
    "clamp(-1.0, 1.0)": torch.nn.Hardtanh(),
    "clamp(-0.5, 20.0)": torch.nn.Hardtanh(-0.5, 20),
    "hardswish": torch.nn.Hardswish(),
}


def plain_linear_act(x, weight, bias=None, activation="none"):
    """`fge.torch.linear_act` in PyTorch's operators."""
    return ACTIVATIONS[activation](functional.linear(x, weight, bias))


def tensor(array, requires_grad=False):
    """A tensor on the memory of `array`, with its strides."""
    if array.dtype == BFLOAT16:
        made = torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    else:
        made = torch.from_numpy(array)
    return made.requires_grad_(requires_grad)


def array(tensor):
    """A tensor's values in the numpy dtype of the same name."""
    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.uint16).numpy().view(BFLOAT16)
    return tensor.numpy()


def random_tensors(*shapes, dtype=torch.float32, requires_grad=True, seed=0):
    """A tensor of each shape, of normal values."""
    generator = torch.Generator().manual_seed(seed)
    made = (torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes)
    return [tensor.requires_grad_(requires_grad) for tensor in made]


def assert_all_close(actual, expected, tolerance=1e-5):
    """Two trees of tensors."""
    actual, expected = (torch.utils._pytree.tree_leaves(tree) for tree in (actual, expected))
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
