"""Choices of shapes and options that meet one another in every pair, without the whole cross product.

Row (i, j) of the design takes item (i + c j) mod p from its c-th list, p prime and at least the longest list's
length. For any two lists, every pair of their items then occurs in some row.
"""

from typing import NamedTuple

from activation_table import ACTIVATIONS

SIZES = (0, 1, 7, 15, 16, 17, 31, 33, 127, 128, 129)
TRANSPOSITIONS = ((False, False), (False, True), (True, False), (True, True))

# Larger than any cache block in one or several dimensions, none of them a multiple of a vector.
LARGE_SHAPES = (
    (300, 700, 530),
    (1, 700, 530),
    (300, 1, 530),
    (300, 700, 1),
    (129, 1500, 33),
    (1030, 20, 40),
    (20, 20, 4100),
)


def _is_prime(number):
    return number > 1 and all(number % divisor for divisor in range(2, int(number**0.5) + 1))


def pairwise(*lists):
    prime = max(len(items) for items in lists)
    while not _is_prime(prime) or prime < len(lists):
        prime += 1
    for i in range(prime):
        for j in range(prime):
            yield tuple(items[(i + c * j) % prime % len(items)] for c, items in enumerate(lists))


class Case(NamedTuple):
    m: int
    k: int
    n: int
    activation: str
    trans_x: bool
    trans_y: bool
    has_bias: bool

    def __str__(self):
        flags = ("T" if self.trans_x else "N") + ("T" if self.trans_y else "N")
        return f"{self.m}x{self.k}x{self.n}-{self.activation}-{flags}-{'bias' if self.has_bias else 'nobias'}"


def _cases():
    rows = pairwise(SIZES, SIZES, SIZES, tuple(ACTIVATIONS), TRANSPOSITIONS, (True, True, False))
    return [Case(m, k, n, activation, *flags, has_bias) for m, k, n, activation, flags, has_bias in rows]


def _large_cases():
    # Each shape with each transposition; the activations take turns.
    names = tuple(ACTIVATIONS)
    return [
        Case(*shape, names[(s + 2 * t) % len(names)], *flags, (s + t) % 3 > 0)
        for s, shape in enumerate(LARGE_SHAPES)
        for t, flags in enumerate(TRANSPOSITIONS)
    ]


CASES = _cases()
LARGE_CASES = _large_cases()
