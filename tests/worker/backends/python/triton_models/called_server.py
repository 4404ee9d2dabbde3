"""A server for models of tests: it records what it is asked, and answers from another thread as the test says."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from isochrone.worker.backends.python.triton.failures import TritonModelException
from isochrone.worker.backends.python.triton.responses import InferenceResponse
from isochrone.worker.backends.python.triton.server import ModelCall

Respond = Callable[[ModelCall], list[InferenceResponse]]


class RecordedServer:
    """Answers each call with the responses that ``respond`` makes."""

    def __init__(self, respond: Respond = lambda call: [InferenceResponse()]) -> None:
        self.respond = respond
        self.calls: list[ModelCall] = []
        self.cancelled = 0
        self.logged: list[tuple[str, str]] = []
        self.has_logged = threading.Event()
        self.loaded: list[Any] = []
        self.may_block = True

    def call(self, call: ModelCall, deliver: Callable[[InferenceResponse, bool], None]) -> Callable[[], None]:
        self.calls.append(call)
        responses = self.respond(call)

        def answer() -> None:
            for number, response in enumerate(responses, 1):
                deliver(response, number == len(responses))

        threading.Thread(target=answer).start()
        return self._cancel

    def _cancel(self) -> None:
        self.cancelled += 1

    def is_model_ready(self, name: str, version: str) -> bool:
        if version == "first":
            raise TritonModelException("no such number")
        return (name, version) in (("there", ""), ("there", "1"))

    def load_model(self, name: str, config: str, files: Mapping[str, bytes] | None) -> None:
        if name == "nobody":
            raise TritonModelException("not found")
        self.loaded.append((name, config, files))

    def unload_model(self, name: str, unload_dependents: bool) -> None:
        if name == "nobody":
            raise TritonModelException("not found")
        self.loaded.append((name, unload_dependents))

    def log(self, level: str, message: str) -> None:
        self.logged.append((level, message))
        self.has_logged.set()
