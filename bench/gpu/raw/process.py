"""The raw figures from a process beside the server: measured in turns with it, on the same GPU, in the same run."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from bench.gpu.models.repository import FILE
from bench.gpu.models.specs import Sizes, spec_of
from bench.gpu.raw.raw_model import RawModel

#: torch, a CUDA context and the weights of a model.
_LOAD_SECONDS = 180.0


def _serve(link: Connection, repository: Path, sizes: Sizes, device: str, cores: frozenset[int]) -> None:
    os.sched_setaffinity(0, cores)
    models: dict[str, RawModel] = {}
    while (asked := link.recv()) is not None:
        model, version, call, arguments = asked
        try:
            key = f"{model}/{version}"
            if key not in models:
                models[key] = RawModel(spec_of(model, sizes), repository / model / version / FILE, device)
            link.send(getattr(models[key], call)(*arguments))
        except Exception as error:
            link.send(f"{type(error).__name__}: {error}")


class RawProcess:
    """``with RawProcess(...) as raw: raw.measure("encoder", "copies", 64, 1.0)``."""

    def __init__(self, repository: Path, sizes: Sizes, device: str, cores: Sequence[int]) -> None:
        context = multiprocessing.get_context("spawn")
        self._link, there = context.Pipe()
        arguments = (there, repository, sizes, device, frozenset(cores))
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        there.close()

    def __enter__(self) -> RawProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._link.send(None)
        except OSError:
            pass
        self._process.join(10)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def measure(self, model: str, mode: str, batch: int, seconds: float) -> dict[str, Any]:
        found: dict[str, Any] = self._ask(model, "1", "measure", (mode, batch, seconds), seconds)
        return found

    def reference(self, model: str, version: int = 1) -> np.ndarray:
        """The answers to the samples of a model's spec."""
        found: np.ndarray = self._ask(model, str(version), "reference", (), 0)
        return found

    def _ask(self, model: str, version: str, call: str, arguments: tuple[Any, ...], seconds: float) -> Any:
        self._link.send((model, version, call, arguments))
        if not self._link.poll(_LOAD_SECONDS + 3 * seconds):
            raise RuntimeError(f"raw {model}: no figure within {_LOAD_SECONDS + 3 * seconds:.0f} s")
        try:
            given = self._link.recv()
        except EOFError:
            raise RuntimeError(f"raw {model}: the process ended") from None
        if isinstance(given, str):
            raise RuntimeError(f"raw {model}: {given}")
        return given
