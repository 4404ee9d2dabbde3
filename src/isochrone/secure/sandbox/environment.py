"""The environment variables that the process of a model gets: none that could hold a secret."""

from __future__ import annotations

from collections.abc import Mapping

_KEPT = frozenset(
    [
        "PATH",
        "LANG",
        "LANGUAGE",
        "TZ",
        "LD_LIBRARY_PATH",
        "PYTHONPATH",
        "PYTHONHOME",
        "PYTHONHASHSEED",
        "PYTHONWARNINGS",
        "PYTHONNOUSERSITE",
        "PYTHONDONTWRITEBYTECODE",
        "PYTHONUTF8",
        "PYTHONIOENCODING",
        "OMP_NUM_THREADS",
        "MKL_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "NUMEXPR_NUM_THREADS",
        "GOTO_NUM_THREADS",
        "MALLOC_ARENA_MAX",
        "CUDA_VISIBLE_DEVICES",
    ]
)
_KEPT_PREFIXES = ("LC_", "OMP_", "KMP_")


def scrubbed(environment: Mapping[str, str]) -> dict[str, str]:
    """What is left of the worker's environment."""
    return {name: value for name, value in environment.items() if name in _KEPT or name.startswith(_KEPT_PREFIXES)}


def with_directory(scratch: str) -> dict[str, str]:
    """What the process sets once it knows where it may write. It has no home and no user with a name."""
    place = scratch or "/nonexistent"
    return {"HOME": place, "TMPDIR": place, "USER": "model", "LOGNAME": "model"}
