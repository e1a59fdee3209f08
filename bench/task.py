"""The vocabulary of the benchmark: a task, a run of it by one contender, and a comparison of two runs."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from bench.shapes import Shape

#: Products in one call of each operation: the backward has one for x_grad and one for y_grad.
PRODUCTS = {"gemm": 1, "forward": 1, "backward": 2, "training": 3}
OPERATIONS = tuple(PRODUCTS)
DTYPES = ("float32", "float64", "float16", "bfloat16")
ACTIVATIONS = (
    "none",
    "relu",
    "gelu",
    "gelu_erf",
    "silu",
    "sigmoid",
    "tanh",
    "leaky_relu",
    "relu6",
    "clamp",
    "sqrelu",
    "hardswish",
)


@dataclass(frozen=True)
class Task:
    """What one call computes. ``reserve`` means something to fge alone: others keep what they keep."""

    operation: str
    shape: Shape
    dtype: str
    activation: str = "none"
    bias: bool = False
    reserve: bool = False

    @classmethod
    def from_json(cls, fields: dict) -> Task:
        """The inverse of ``to_json``."""
        return cls(**{**fields, "shape": Shape(*fields["shape"])})

    def to_json(self) -> dict:
        """Plain types only."""
        return asdict(self)

    @property
    def flops(self) -> int:
        """Those of the products alone: bias and activation are overhead, whoever runs them."""
        return 2 * self.shape.m * self.shape.k * self.shape.n * PRODUCTS[self.operation]

    @property
    def formula(self) -> tuple:
        """What two tasks share when their results must be equal."""
        return self.operation, self.shape, self.dtype, self.activation, self.bias

    def __str__(self) -> str:
        if self.operation == "gemm":
            return "bare GEMM"
        epilogue = self.activation if self.activation != "none" or not self.bias else "bias"
        return f"{self.operation} {epilogue}{' + reserve' if self.reserve else ''}"


def gemm(shape: Shape, dtype: str) -> Task:
    """x @ y and nothing else."""
    return Task("gemm", shape, dtype)


def forward(shape: Shape, dtype: str, activation: str, *, reserve: bool = False) -> Task:
    """act(x @ y + bias)."""
    return Task("forward", shape, dtype, activation, bias=True, reserve=reserve)


def backward(shape: Shape, dtype: str, activation: str) -> Task:
    """All three gradients, from what a forward before the measurement kept."""
    return Task("backward", shape, dtype, activation, bias=True)


def training(shape: Shape, dtype: str, activation: str) -> Task:
    """The forward and all three gradients."""
    return Task("training", shape, dtype, activation, bias=True)


@dataclass(frozen=True)
class Run:
    """A task as one contender runs it."""

    contender: str
    task: Task
    threads: int

    def to_json(self) -> dict:
        """Plain types only."""
        return {"contender": self.contender, "threads": self.threads, "task": self.task.to_json()}

    def __str__(self) -> str:
        return f"{self.contender} {self.task}"


@dataclass(frozen=True)
class Comparison:
    """Two runs whose times are set against each other as theirs / ours: above 1, ours is faster."""

    ours: Run
    theirs: Run

    @property
    def same_formula(self) -> bool:
        """Whether both must give the same result (a forward may be compared with a bare GEMM, too)."""
        return self.ours.task.formula == self.theirs.task.formula
