"""Messages between the server and the process of an isolated model, and their framing.

One question, one answer, over a socket pair: a length (4 bytes, little-endian) and a MessagePack body. Tensors are in
shared blocks; a message holds their places. No pickle: a model's process cannot make the server run code.
"""

from __future__ import annotations

import socket
from typing import Any

import msgspec

from isochrone.worker.backends.processes.places import Place

# The largest message holds a configuration; a greater length is invalid.
_LONGEST_FRAME = 64 * 1024 * 1024


class Start(msgspec.Struct, tag=True):
    """First message of the server: load this model."""

    #: A module with ``load_in_child(model: msgspec.Raw) -> Executable``.
    loader: str
    #: What that function reads, in a form of its own.
    model: msgspec.Raw
    #: The model and its version, for errors.
    label: str
    cpus: list[int]


class Infer(msgspec.Struct, tag=True):
    """Run a batch; write the results into response block number ``response``."""

    tensors: list[Place]
    size: int
    outputs: list[str] | None
    response: int


class Open(msgspec.Struct, tag=True):
    """Begin the responses of one request of a decoupled model."""

    tensors: list[Place]
    size: int
    parameters: dict[str, bool | int | float | str]


class Next(msgspec.Struct, tag=True):
    """Give the next response of the open request."""

    response: int


class Stop(msgspec.Struct, tag=True):
    """Close the open request; no further response is needed."""


class Close(msgspec.Struct, tag=True):
    """Close the model and exit."""


class Done(msgspec.Struct, tag=True):
    """Started, opened, stopped, or: no further response."""

    #: Of a model that was started: the CUDA graphs that it captured.
    captured_graphs: int = 0


class Result(msgspec.Struct, tag=True):
    """Tensors lie in the response block."""

    tensors: list[Place]
    size: int


class Failed(msgspec.Struct, tag=True):
    """The model failed; ``config`` has the four parts of a ConfigError."""

    message: str
    config: list[str] = []
    #: Where it was raised, for the server's log.
    traceback: str = ""
    #: The ``code`` of the error.
    code: str = ""
    #: Why the process ends now, for example because it has lost its device. "": it goes on.
    lost: str = ""


Question = Start | Infer | Open | Next | Stop | Close
Answer = Done | Result | Failed

_encoder = msgspec.msgpack.Encoder()
_questions = msgspec.msgpack.Decoder(Question)
_answers = msgspec.msgpack.Decoder(Answer)


class Disconnected(Exception):
    """The other side has disconnected, or sent an invalid message."""


def send(link: socket.socket, message: msgspec.Struct) -> None:
    body = _encoder.encode(message)
    try:
        link.sendall(len(body).to_bytes(4, "little") + body)
    except OSError as error:
        raise Disconnected(str(error)) from error


def receive_question(link: socket.socket) -> Question:
    question: Question = decoded(_questions, receive_body(link))
    return question


def receive_answer(link: socket.socket) -> Answer:
    answer: Answer = decoded(_answers, receive_body(link))
    return answer


def decoded(decoder: Any, body: memoryview) -> Any:
    """Raises ``Disconnected`` for anything else than a message of the decoder's type."""
    try:
        return decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise Disconnected(f"not a message: {error}") from error


def receive_body(link: socket.socket) -> memoryview:
    """The body of one message."""
    # Neither side sends twice in a row, so received bytes belong to one frame, and one read usually has it all.
    received = bytearray()
    length = 4
    while len(received) < length:
        try:
            data = link.recv(65536)
        except OSError as error:
            raise Disconnected(str(error)) from error
        if not data:
            raise Disconnected("the other side has disconnected")
        received += data
        if length == 4 and len(received) >= 4:
            length = 4 + int.from_bytes(received[:4], "little")
            if length > _LONGEST_FRAME:
                raise Disconnected(f"a frame of {length} bytes")
    return memoryview(received)[4:length]
