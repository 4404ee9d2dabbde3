"""Opens models in the supervisor, so that the processes it forks share their weights.

Only what survives a fork: onnxruntime sessions on the CPU with one thread. Everything else is loaded by each process.
Since 1.29 onnxruntime has a thread for telemetry, and a process that is forked beside it aborts when it ends; so
telemetry is off in servers of several processes (``ORT_DISABLE_TELEMETRY``). Before the supervisor opens anything, a
process is forked to try it: the threads that it has then decide.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import structlog

from isochrone.errors import IsochroneError
from isochrone.models import onnx_telemetry as onnx_telemetry
from isochrone.models.configuration.backends import backend_name
from isochrone.models.repository.repository import Repository
from isochrone.worker.backends.interface import LoadContext
from isochrone.worker.catalog.instance_groups import load_contexts
from isochrone.worker.server.settings import ServeSettings

log = structlog.get_logger(__name__)

_BACKEND = "onnx"


def preload(settings: ServeSettings) -> int:
    """The number of instances whose weights the processes will share."""
    if settings.control_mode == "explicit" and not settings.load_models:
        return 0
    if settings.trusted_signers or settings.model_keys is not None:
        # Nothing is opened before it is verified or decrypted, and each process has copies of its own.
        return 0
    # Reading a configuration may import onnxruntime already, so this process reads none before.
    if threads := _threads_after(lambda: any(map(_keep, _contexts(settings)))):
        log.warning(
            "each process loads its own copy of the weights: onnxruntime starts threads, which no fork survives",
            threads=threads,
        )
        return 0
    kept = sum(map(_keep, _contexts(settings)))
    if threads := threads_left():
        from isochrone.worker.backends.onnx import sessions

        sessions.discard()
        log.warning("the supervisor has threads; each process loads its own copy of the weights", threads=threads)
        return 0
    # Collections in the processes need not touch these objects, and so not copy their pages.
    gc.collect()
    gc.freeze()
    return kept


def _contexts(settings: ServeSettings) -> Iterator[LoadContext]:
    """The instances that onnxruntime would run. What cannot be read is the processes' to report."""
    loading = settings.loading
    # Fetching starts threads, which no fork survives: each process loads its own copy of a remote model's weights.
    local = [place for place in settings.repositories if isinstance(place, Path)]
    try:
        repository = Repository(
            local,
            loading.config_name,
            loading.assumed_batch_sizes,
            namespacing=loading.namespacing,
            links_stay=loading.sandbox is not None,
        )
        names = list(repository.scan())
    except IsochroneError:
        return
    if settings.control_mode == "explicit" and "*" not in settings.load_models:
        names = [name for name in names if name in settings.load_models]
    for name in names:
        try:
            description = repository.read(name)
            for version, directory in description.versions.items():
                of_version = description.of_version(version)
                if backend_name(of_version.config) == _BACKEND:
                    yield from load_contexts(of_version, version, directory, _BACKEND, loading)
        except IsochroneError:
            continue


def _keep(context: LoadContext) -> bool:
    from isochrone.worker.backends.onnx.backend import keep

    try:
        return keep(context)
    except Exception:
        # The process that loads the model says what is wrong with it.
        return False


def _threads_after(work: Callable[[], object]) -> int:
    """Threads that a forked process has after some work, beside its own; it ends at once."""
    pid = os.fork()
    if not pid:
        status = 255
        try:
            work()
            status = min(threads_left(), 254)
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def threads_left() -> int:
    """Threads of this process, beside the main one, that outlive a fork of it.

    Libraries that are made for it, as OpenBLAS, end their threads before a fork; so one is forked before they are
    counted.
    """
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)
    return len(os.listdir("/proc/self/task")) - 1
