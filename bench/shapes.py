"""The sizes that are measured: x is [M, K], y is [K, N]."""

from __future__ import annotations

from typing import NamedTuple


class Shape(NamedTuple):
    """The three sizes of one product."""

    m: int
    k: int
    n: int

    def __str__(self) -> str:
        return f"{self.m},{self.k},{self.n}"


#: The two halves of a BERT-base feed-forward layer, a recommender's tall and narrow layers, GPT-2 large.
DEFAULT = (
    Shape(512, 768, 3072),
    Shape(512, 3072, 768),
    Shape(2048, 64, 256),
    Shape(4096, 256, 1024),
    Shape(1024, 1280, 5120),
)

#: One shape where the product dominates and one where the epilogue does.
QUICK = (Shape(512, 768, 3072), Shape(2048, 64, 256))

#: So little arithmetic that the cost of a call is all there is.
CALL = Shape(8, 4, 128)

#: One token through a square layer: the speed of memory, not of arithmetic.
DECODE = Shape(1, 4096, 4096)

#: Large enough for the peak, and small enough to be quick.
CUBE = Shape(1024, 1024, 1024)


def parse(text: str) -> tuple[Shape, ...]:
    """Shapes from ``M,K,N;M,K,N``."""
    shapes = []
    for part in filter(None, (part.strip() for part in text.split(";"))):
        sizes = part.split(",")
        if len(sizes) != 3 or not all(size.strip().isdecimal() and int(size) > 0 for size in sizes):
            raise ValueError(f"shape {part!r} is not three positive numbers M,K,N")
        shapes.append(Shape(*map(int, sizes)))
    if not shapes:
        raise ValueError("no shape given; expected M,K,N;M,K,N")
    return tuple(shapes)
