"""Which BLAS a package brought, and the kernel that it chose for this processor."""

from __future__ import annotations


def blas_of(package: str) -> str:
    """One line. A process may hold several; a wheel's own lies in ``<package>.libs``."""
    try:
        from threadpoolctl import threadpool_info
    except ImportError:
        return "BLAS unknown: threadpoolctl isn't installed"
    found = [library for library in threadpool_info() if library["user_api"] == "blas"]
    own = [library for library in found if f"{package}.libs" in library["filepath"]] or found
    return ", ".join(_name(library) for library in own) or "BLAS unknown"


def _name(library: dict) -> str:
    parts = library["internal_api"], library["version"], library.get("architecture"), "kernels"
    return " ".join(part for part in parts if part)
