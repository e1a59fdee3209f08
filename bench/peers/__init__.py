"""The contenders, one module each.

A module has ``DISTRIBUTION`` (the installed package whose version is reported), ``about()`` (what computes
its products) and ``prepare(task, inputs)``, which returns the ``Work`` to be timed or raises ``Unavailable``.
It is imported in the contender's own process only.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

#: Those that can be asked for by ``--peers``.
PEERS = ("numpy", "scipy", "torch", "torch_compile", "paddle", "jax")
#: Not a library: the time that the machine's multiply-add units would need.
PEAK = "peak"


def load(name: str) -> ModuleType:
    """The module of this contender."""
    return import_module(f"bench.peers.{name}")
