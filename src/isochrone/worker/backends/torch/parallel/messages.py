"""Messages between rank 0 and the other ranks of a parallel instance: orders, and a report on each.

They pass over socket pairs, in the framing of ``isolation.messages``; tensors pass through ``transport``. A rank that
waits for an order is inside no collective, so an idle instance cannot run into the time limit of one.
"""

from __future__ import annotations

import socket

import msgspec

from isochrone.worker.backends.isolation.messages import Disconnected, decoded, receive_body, send
from isochrone.worker.backends.isolation.sent_context import SentContext

__all__ = ["Disconnected", "send"]


class TensorHead(msgspec.Struct, array_like=True):
    """A tensor that is on its way: its name, torch's name of its type, its shape."""

    name: str
    dtype: str
    shape: list[int]


class Prepare(msgspec.Struct, tag=True):
    """First order: build the model and check it."""

    context: SentContext
    rank: int


class Meet(msgspec.Struct, tag=True):
    """Second order: connect to the other ranks and read this rank's part of the weights."""


class RunBatch(msgspec.Struct, tag=True):
    """Run a batch."""

    inputs: list[TensorHead]
    #: Rows of each micro-batch; empty: the batch is not split.
    rows: list[int]


class Close(msgspec.Struct, tag=True):
    """Free the model and exit."""


class Failure(msgspec.Struct):
    """An error of one rank."""

    message: str
    #: The four parts of a ConfigError; empty: it is another error.
    config: list[str] = []
    #: The lines of code through which it was raised: ranks that fail alike were at the same place.
    place: str = ""
    traceback: str = ""
    #: Whether ranks may be left inside a collective, or out of step.
    is_fatal: bool = False


class Report(msgspec.Struct, tag=True):
    """An order was carried out, or failed."""

    failure: Failure | None = None


Order = Prepare | Meet | RunBatch | Close

_orders = msgspec.msgpack.Decoder(Order)
_reports = msgspec.msgpack.Decoder(Report)


def receive_order(link: socket.socket) -> Order:
    order: Order = decoded(_orders, receive_body(link))
    return order


def receive_report(link: socket.socket) -> Report:
    report: Report = decoded(_reports, receive_body(link))
    return report
