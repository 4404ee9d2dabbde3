"""What a Triton model asks of the server that runs it, as one interface: calls of other models, readiness, loads, logs.

Inside the worker ``worker.model_calls`` answers; in the process of an isolated model ``isolation`` passes the questions
on to the worker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from isochrone.clock import NEVER

if TYPE_CHECKING:
    from isochrone.protocol.messages import Parameter
    from isochrone.worker.backends.python.triton.responses import InferenceResponse
    from isochrone.worker.backends.python.triton.tensors import Tensor

#: Takes a response of a called model, and whether it is the last one. Called once or more, from any thread.
Deliver = Callable[["InferenceResponse", bool], None]
Cancel = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Errand:
    """The requests on whose behalf a model runs: what it asks of other models counts as theirs."""

    #: The latest of their deadlines (monotonic ns), and their highest priority.
    deadline: int = NEVER
    priority: int = 0
    #: The versions (model, version) that wait for this run: each called the next one.
    chain: tuple[tuple[str, str], ...] = ()


#: Set while ``execute`` runs. Tasks that it starts inherit it; threads do not.
errand: ContextVar[Errand | None] = ContextVar("errand", default=None)

_NOBODYS = Errand()


class RunningErrands:
    """The errands of the runs of one model instance: a thread that the model started finds its errand here."""

    def __init__(self) -> None:
        # Each step is one operation on a list: runs and threads need no lock.
        self._running: list[Errand] = []

    def begin(self, own: Errand) -> None:
        self._running.append(own)

    def end(self, own: Errand) -> None:
        self._running.remove(own)

    def current(self) -> Errand:
        """The errand of the calling code. A thread of the model has that of the run; if several run, as coroutines do,
        or none, it has nobody's."""
        own = errand.get()
        if own is not None:
            return own
        running = set(self._running)
        return running.pop() if len(running) == 1 else _NOBODYS


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A request of one model to another (Triton: business logic scripting)."""

    model_name: str
    #: -1: the server chooses.
    model_version: int
    inputs: list[Tensor]
    outputs: frozenset[str]
    request_id: str
    correlation_id: int | str
    flags: int
    timeout_us: int
    parameters: Mapping[str, Parameter]
    #: The caller takes any number of responses.
    takes_many: bool
    errand: Errand


class Server(Protocol):
    """Every method may be called from any thread of the model's process; on that of the worker's event loop, those that
    wait for an answer raise ``TritonModelException``."""

    def call(self, call: ModelCall, deliver: Deliver) -> Cancel:
        """Starts a call. Never raises: a call that cannot be made has an error as its one response."""

    def is_model_ready(self, name: str, version: str) -> bool: ...

    def load_model(self, name: str, config: str, files: Mapping[str, bytes] | None) -> None: ...

    def unload_model(self, name: str, unload_dependents: bool) -> None: ...

    def log(self, level: str, message: str) -> None: ...

    def metric(
        self, name: str, description: str, kind: str, labels: Mapping[str, str], buckets: Sequence[float]
    ) -> Any:
        """A metric of the model's own, with ``increment``, ``set``, ``observe`` and ``value``. Raises ``ValueError``,
        as they do."""

    @property
    def may_block(self) -> bool:
        """Whether the calling thread may wait for the server: the thread of its event loop may not."""
