"""Opens onnxruntime sessions, and keeps those that were opened before the process was forked.

A supervisor opens the sessions of models whose runtime has no threads; the processes that it forks then share their
weights (copy-on-write) and load in no time. A kept session is used once, and only if the files and the options are
still those that it was opened with.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnxruntime

from isochrone.worker.backends.onnx.options import CPU_PROVIDER

Providers = list[tuple[str, dict[str, str]]]

#: What a session was opened with → sessions that nobody has taken.
_kept: dict[Any, list[Any]] = {}


def open_session(path: Path, options: Any, providers: Providers) -> Any:
    """A session that was kept for these files and options, or a new one."""
    if _kept:
        sessions = _kept.get(_key(path, options, providers))
        if sessions:
            return sessions.pop()
    # Without enable_fallback=0, onnxruntime replaces a failing provider by the CPU and only prints a line.
    return onnxruntime.InferenceSession(str(path), options, providers=providers, enable_fallback=0)


def keep(path: Path, options: Any, providers: Providers) -> bool:
    """Open a session for a process to be forked. False: it would have threads or a device, which no fork survives."""
    threads = options.intra_op_num_threads, options.inter_op_num_threads
    if threads != (1, 1) or [name for name, _ in providers] != [CPU_PROVIDER]:
        return False
    key = _key(path, options, providers)
    session = onnxruntime.InferenceSession(str(path), options, providers=providers, enable_fallback=0)
    _kept.setdefault(key, []).append(session)
    return True


def discard() -> None:
    """Close the sessions that nobody has taken."""
    _kept.clear()


def _key(path: Path, options: Any, providers: Providers) -> Any:
    # All files of the directory: weights may be in files of their own.
    files = sorted((entry.name, entry.stat()) for entry in path.parent.iterdir() if entry.is_file())
    return (
        str(path.absolute()),
        tuple((name, about.st_size, about.st_mtime_ns, about.st_ino) for name, about in files),
        options.graph_optimization_level,
        options.execution_mode,
        options.enable_cpu_mem_arena,
        options.enable_mem_pattern,
        options.get_session_config_entry("session.intra_op.allow_spinning"),
        repr(providers),
    )
