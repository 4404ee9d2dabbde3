"""A closed loop of gRPC calls over one connection or several: unary calls on many streams, or one ModelStreamInfer.

h2load sends one body again and again; agents do not. Frames are made once per kind of message, and only stream numbers
and ids are written into a copy. The loop takes about 6 µs per call, less than any server that is measured with it; its
share of a core is reported, so that a reader sees when it was the bottleneck.
"""

import gc
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.realistic.messages import ID_DIGITS, STREAM_PATH, Message
from bench.worker.conversations import OPENING, ConversationFailed, frame, header_blocks
from bench.worker.payloads import GRPC_INFER_PATH

_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY = 0, 1, 3, 4, 6, 7
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1
_FRAME_BYTES = 16_384
_pack_stream = struct.Struct(">I").pack_into


@dataclass
class Answers:
    """What a run measured."""

    latencies_ns: list[int] = field(default_factory=list)
    seconds: float = 0.0
    cpu_seconds: float = 0.0


class _Template:
    """The frames of one kind of message."""

    def __init__(self, message: Message, block: bytes) -> None:
        data = message.data
        self.frames = bytearray(frame(_HEADERS, _END_HEADERS, 0, block)) if block else bytearray()
        self.offsets = [5] if block else []
        pieces = [data[at : at + _FRAME_BYTES] for at in range(0, len(data), _FRAME_BYTES)]
        for number, piece in enumerate(pieces):
            self.offsets.append(len(self.frames) + 5)
            # A streaming call stays open.
            ends = _END_STREAM if block and number == len(pieces) - 1 else 0
            self.frames += frame(_DATA, ends, 0, piece)
        header = len(self.frames) - len(data)
        self.id_at = header + message.id_at if message.id_at >= 0 and len(pieces) == 1 else -1


class _Connection:
    """One connection with its share of the calls in flight."""

    def __init__(self, address: str, messages: Sequence[Message], streaming: bool) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        first, later = header_blocks(address, STREAM_PATH if streaming else GRPC_INFER_PATH)
        self._first = [_Template(message, first) for message in messages]
        self._later = [_Template(message, b"" if streaming else later) for message in messages]
        self._streaming = streaming
        self._opening = frame(_HEADERS, _END_HEADERS, 1, first)
        self._stream = -1
        self._is_first = True
        #: Stream → when its call began, and its slot. On a streaming call, answers come in the order of the requests.
        self._begun: dict[int, tuple[int, int]] = {}
        self._order: deque[tuple[int, int]] = deque()
        self._received: dict[int, int] = {}
        self._rest = b""
        self._partial = b""
        self._settled = False
        self.out = bytearray()

    def open(self) -> None:
        self.socket.sendall(OPENING)
        while not self._settled:
            self.receive([], 0)
        if self._streaming:
            self.out += self._opening
            self._stream = 1
            self._is_first = False

    def call(self, kind: int, number: int, slot: int, now: int) -> None:
        """Send the next call of a kind; ``number`` is its id."""
        template = (self._first if self._is_first else self._later)[kind]
        self._is_first = False
        frames = template.frames
        if not self._streaming:
            self._stream += 2
        stream = self._stream
        for offset in template.offsets:
            _pack_stream(frames, offset, stream)
        if template.id_at >= 0:
            frames[template.id_at : template.id_at + ID_DIGITS] = b"%012d" % number
        if self._streaming:
            self._order.append((now, slot))
        else:
            self._begun[stream] = (now, slot)
        self.out += frames

    def flush(self) -> None:
        if self.out:
            self.socket.sendall(self.out)
            self.out.clear()

    def receive(self, latencies: list[int], expected: int) -> list[int]:
        """The slots whose calls ended with what has arrived."""
        data = self.socket.recv(1 << 18)
        if not data:
            raise ConversationFailed("the server closed the connection")
        return self._scan(data, latencies, expected)

    def _scan(self, data: bytes, latencies: list[int], expected: int) -> list[int]:
        buffer = self._rest + data if self._rest else data
        position, size = 0, len(buffer)
        ended: list[int] = []
        now = time.perf_counter_ns()
        while size - position >= 9:
            length = (buffer[position] << 16) | (buffer[position + 1] << 8) | buffer[position + 2]
            end = position + 9 + length
            if end > size:
                break
            kind, flags = buffer[position + 3], buffer[position + 4]
            if kind in (_DATA, _HEADERS):
                stream = int.from_bytes(buffer[position + 5 : position + 9], "big")
                if self._streaming:
                    if kind == _DATA:
                        ended += self._messages(buffer[position + 9 : end], latencies, now)
                    elif flags & _END_STREAM:
                        raise ConversationFailed("the streaming call ended")
                else:
                    if kind == _DATA:
                        self._received[stream] = self._received.get(stream, 0) + length
                    if flags & _END_STREAM:
                        if self._received.pop(stream, 0) < expected:
                            raise ConversationFailed(f"an answer is too short: {buffer[position + 9 : end][:200]!r}")
                        begun, slot = self._begun.pop(stream)
                        latencies.append(now - begun)
                        ended.append(slot)
            else:
                self._control(kind, flags, buffer[position + 5 : end])
            position = end
        self._rest = buffer[position:]
        return ended

    def _messages(self, data: bytes, latencies: list[int], now: int) -> list[int]:
        """The slots of the whole gRPC messages in a streaming call's bytes."""
        data = self._partial + data
        position = 0
        ended = []
        while len(data) - position >= 5:
            end = position + 5 + int.from_bytes(data[position + 1 : position + 5], "big")
            if end > len(data):
                break
            if data[position + 5 : position + 6] == b"\x0a":
                raise ConversationFailed(f"an error in the stream: {data[position + 5 : end][:200]!r}")
            begun, slot = self._order.popleft()
            latencies.append(now - begun)
            ended.append(slot)
            position = end
        self._partial = data[position:]
        return ended

    def _control(self, kind: int, flags: int, rest: bytes) -> None:
        payload = rest[4:]
        if kind == _SETTINGS and not flags & _ACK:
            self._settled = True
            self.out += frame(_SETTINGS, _ACK, 0)
        elif kind == _PING and not flags & _ACK:
            self.out += frame(_PING, _ACK, 0, payload)
        elif kind in (_RST_STREAM, _GOAWAY):
            raise ConversationFailed(f"{'RST_STREAM' if kind == _RST_STREAM else 'GOAWAY'} {payload[:64]!r}")

    def close(self) -> None:
        self.socket.close()


def run_calls(
    address: str,
    messages: Sequence[Message],
    in_flight: int,
    seconds: float,
    *,
    expected_bytes: int,
    connections: int = 1,
    streaming: bool = False,
    chains: int = 0,
) -> Answers:
    """Keeps ``in_flight`` calls under way for ``seconds``, over all messages in turn.

    ``chains``: the messages are sequences of so many requests each; every slot sends those of its own in order. The
    requests in flight must fit the server's first windows of 64 KiB, which come back with the answers.
    """
    links = [_Connection(address, messages, streaming) for _ in range(connections)]
    answers = Answers()
    steps = list(range(in_flight))

    def kind_of(slot: int) -> int:
        """Without chains, slots go through all messages, each from its own place on."""
        step = steps[slot]
        steps[slot] += 1
        return slot * chains + (step - slot) % chains if chains else step % len(messages)

    try:
        for link in links:
            link.open()
        poll = select.epoll()
        by_descriptor = {link.socket.fileno(): link for link in links}
        for descriptor in by_descriptor:
            poll.register(descriptor, select.EPOLLIN)
        number = 0
        latencies = answers.latencies_ns
        gc.disable()
        begun, cpu = time.perf_counter_ns(), time.process_time()
        ends = begun + int(seconds * 1e9)
        for slot in range(in_flight):
            number += 1
            links[slot % connections].call(kind_of(slot), number, slot, time.perf_counter_ns())
        for link in links:
            link.flush()
        under_way = in_flight
        now = begun
        while under_way:
            ready = poll.poll(30)
            if not ready:
                raise ConversationFailed(f"no answer within 30 s; {under_way} calls are under way")
            for descriptor, _ in ready:
                link = by_descriptor[descriptor]
                ended = link.receive(latencies, expected_bytes)
                now = time.perf_counter_ns()
                if now < ends:
                    for slot in ended:
                        number += 1
                        link.call(kind_of(slot), number, slot, now)
                else:
                    under_way -= len(ended)
                link.flush()
        answers.seconds = (now - begun) / 1e9
        answers.cpu_seconds = time.process_time() - cpu
        poll.close()
    finally:
        gc.enable()
        for link in links:
            link.close()
    return answers
