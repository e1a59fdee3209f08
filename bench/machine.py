"""What the figures were measured on."""

from __future__ import annotations

import os
import platform


def describe() -> dict:
    """The processor and what is on it; plain types only."""
    from cpuinfo import get_cpu_info

    info = get_cpu_info()
    return {
        "processor": info.get("brand_raw", platform.processor() or "unknown processor"),
        "architecture": platform.machine(),
        "family_model_stepping": [info.get(key) for key in ("family", "model", "stepping")],
        "vector_extensions": _vector_extensions(info.get("flags", [])),
        "l2_bytes": info.get("l2_cache_size"),
        "l3_bytes": info.get("l3_cache_size"),
        "logical_cpus": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def _vector_extensions(flags: list[str]) -> list[str]:
    prefixes = ("avx", "amx", "fma", "f16c", "neon", "asimd", "sve")
    return sorted(flag for flag in flags if flag.startswith(prefixes))
