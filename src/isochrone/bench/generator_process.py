"""The generator process: prepares, waits for the common start, runs one generator, and sends what it measured.

It ends at once when its standard input does, so that it does not outlive the command. Started by ``processes``.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
import sys

import uvloop

from isochrone.bench.generator import Generator, Progress
from isochrone.bench.messages import (
    Failed,
    Prepare,
    Ready,
    Report,
    Result,
    Start,
    Stop,
    columns_of,
    decode_order,
    encode,
)
from isochrone.bench.sending.preparing import check_open_files, make_sender, most_connections, prepare_kinds
from isochrone.bench.workload.mix import choices
from isochrone.bench.workload.spec import Workload
from isochrone.client.answers import TensorMetadata
from isochrone.clock import SECOND
from isochrone.errors import IsochroneError
from isochrone.open_files import raise_file_limit


class _Command:
    """The command's end of the pipes."""

    def __init__(self, loop: asyncio.AbstractEventLoop, orders: int, answers: int) -> None:
        self._orders = orders
        self._answers = answers
        self._unread = b""
        self.start: asyncio.Future[int] = loop.create_future()
        #: The instant at which the command ended the run.
        self.stopped_at: int | None = None
        #: Set while a generator runs.
        self.generator: Generator | None = None
        os.set_blocking(orders, False)
        loop.add_reader(orders, self._read)

    def tell(self, *parts: bytes) -> None:
        os.set_blocking(self._answers, True)
        for part in parts:
            view = memoryview(part)
            while view:
                view = view[os.write(self._answers, view) :]

    def report(self, progress: Progress) -> None:
        """Left out if the command does not read: a generator never waits for its report."""
        os.set_blocking(self._answers, False)
        try:
            # Below PIPE_BUF: written as a whole or not at all.
            os.write(self._answers, encode(Report(*progress)))
        except BlockingIOError:
            pass

    def _read(self) -> None:
        try:
            data = os.read(self._orders, 1 << 16)
        except BlockingIOError:
            return
        if not data:
            # The command is gone.
            os._exit(1)
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            order = decode_order(line)
            if isinstance(order, Start) and not self.start.done():
                self.start.set_result(order.at)
            elif isinstance(order, Stop):
                self.stopped_at = order.at
                if self.generator is not None:
                    self.generator.stop(order.at)
                elif not self.start.done():
                    self.start.cancel()


async def _run(order: Prepare, orders: int, answers: int) -> None:
    workload = Workload.model_validate_json(order.workload)
    command = _Command(asyncio.get_running_loop(), orders, answers)
    try:
        connections = most_connections(workload, order.index, order.count)
        check_open_files(connections, raise_file_limit(), is_open_loop=workload.is_open_loop)
        declared = [[TensorMetadata(name, kind, tuple(shape)) for name, kind, shape in each] for each in order.declared]
        kinds = prepare_kinds(workload, declared, order.first_sequence)
        sender = make_sender(workload, order.index, order.count)
        await sender.open()
    except IsochroneError as error:
        command.tell(encode(Failed(str(error))))
        return
    # Drawn from while requests are sent: numpy imports it at its first use, and requests would wait for that.
    importlib.import_module("numpy.random")
    # The collector's pauses would be measured as the server's. What was made until now is not looked at again, and
    # requests leave no cycles behind; rare collections free those of errors.
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 1000, 1000)
    command.tell(encode(Ready()))
    try:
        start = await command.start
        generator = Generator(
            sender,
            kinds,
            choices(workload.kinds, workload.seed * order.count + order.index),
            start=start,
            warmup_ns=round(workload.warmup_seconds * SECOND),
            window_ns=round(workload.seconds * SECOND),
            timeout_ns=round(workload.timeout_seconds * SECOND),
            report=command.report,
        )
        command.generator = generator
        if command.stopped_at is not None:
            generator.stop(command.stopped_at)
        if workload.is_open_loop:
            await generator.run_open_loop(workload.instants(order.index, order.count))
        else:
            await generator.run_closed_loop(workload.part_in_flight(order.index, order.count))
    finally:
        await sender.close()
    use = generator.use()
    recorder = generator.recorder
    outcomes, carried = recorder.outcomes(), recorder.carried()
    result = Result(
        len(outcomes),
        len(carried),
        recorder.unfinished,
        recorder.stalls,
        generator.measured_seconds(),
        use.cpu_share,
        use.lag_p50_ns,
        use.lag_p99_ns,
        use.lag_max_ns,
        recorder.errors,
    )
    command.tell(encode(result), *columns_of(outcomes), *columns_of(carried))


def main() -> None:
    answers = os.dup(1)
    # What a library prints must not be taken for an answer.
    os.dup2(2, 1)
    order = decode_order(sys.stdin.buffer.readline())
    assert isinstance(order, Prepare)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(order, sys.stdin.fileno(), answers))


if __name__ == "__main__":
    main()
