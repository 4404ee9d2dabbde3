"""Answers questions in a child process each, one at a time: a simulation would hold up the event loop that asks.

A few questions may wait for their turn; more are rejected. Only a question whose turn has come, and that can be read,
asks for the situation: the others cost the fleet nothing. The child starts while the situation is read. A child that is
late, or whose caller is cancelled, is ended.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future

import msgspec

from isochrone.control.what_if.answers import WhatIfAnswer
from isochrone.control.what_if.asking import ReadSituation
from isochrone.errors import Internal, InvalidArgument, QueueFull, Unavailable
from isochrone.simulate.what_if.question import parse_questions
from isochrone.simulate.what_if.task import WhatIfFailure, WhatIfTask

#: Seconds in which a question should be answered when its turn has come, and after which its process is ended. Starting
#: it takes up to a second. People wait for less than 5 s.
_BUDGET, _DEADLINE = 4.0, 15.0
#: Questions that wait for their turn.
_MOST_WAITING = 3
#: Characters of a child's last words in an error.
_SHOWN = 300


class SimulatorProcess:
    """One object per controller."""

    def __init__(self, budget: float = _BUDGET, deadline: float = _DEADLINE) -> None:
        self._budget = budget
        self._deadline = deadline
        self._turn = asyncio.Lock()
        self._waiting = 0

    @property
    def is_busy(self) -> bool:
        return self._turn.locked()

    async def answer(
        self, situation: ReadSituation, questions: Sequence[str], seed: int = 1, seconds: float | None = None
    ) -> WhatIfAnswer:
        parse_questions(questions)
        if self._turn.locked() and self._waiting >= _MOST_WAITING:
            raise QueueFull(f"{self._waiting + 1} what-if questions are being answered; try again in a few seconds")
        self._waiting += 1
        try:
            await self._turn.acquire()
        finally:
            self._waiting -= 1
        try:
            return _answer(await self._run(situation, questions, seed, seconds))
        finally:
            self._turn.release()

    async def _run(self, situation: ReadSituation, questions: Sequence[str], seed: int, seconds: float | None) -> bytes:
        began = time.monotonic()
        child, task = _Child(), Future[bytes]()
        # Not asyncio's subprocesses: a caller that gives up while one starts would wait for its end forever (3.11).
        running = asyncio.ensure_future(asyncio.to_thread(child.run, task, self._deadline))
        try:
            found = await situation()
            given = WhatIfTask(found, tuple(questions), seed, seconds, self._budget, self._deadline, began)
            task.set_result(msgspec.json.encode(given))
            return await asyncio.shield(running)
        finally:
            # Also when the thread's future is done: a loop that ends cancels it, and the thread goes on.
            child.kill()
            if not task.done():
                task.set_exception(Unavailable("the question was withdrawn"))
            if not running.done():
                # It has been killed: its thread ends at once, with an error that nobody waits for.
                await asyncio.wait([running])
            if not running.cancelled():
                running.exception()


class _Child:
    """One process, run by a thread."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_killed = False

    def kill(self) -> None:
        """End it, or keep it from being started."""
        with self._changing:
            self._is_killed = True
            if self._process is not None:
                self._process.kill()

    def run(self, task: Future[bytes], deadline: float) -> bytes:
        """What it wrote. Raises ``Internal`` if it failed, and ``Unavailable`` if it took longer than ``deadline``
        after it got its task."""
        with self._changing:
            if self._is_killed:
                raise Unavailable("the simulation was cancelled")
            process = self._process = subprocess.Popen(
                (sys.executable, "-m", "isochrone.simulate.what_if.child"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        with process:
            try:
                output, errors = process.communicate(task.result(), timeout=deadline)
            except subprocess.TimeoutExpired:
                raise Unavailable(f"the simulation took longer than {deadline:g} s; try again") from None
            finally:
                process.kill()
        if process.returncode:
            last_words = errors.decode(errors="replace").strip()[-_SHOWN:]
            raise Internal(f"the simulation ended with status {process.returncode}: {last_words or 'it said nothing'}")
        return output


def _answer(output: bytes) -> WhatIfAnswer:
    try:
        return msgspec.json.decode(output, type=WhatIfAnswer)
    except msgspec.ValidationError:
        failure = msgspec.json.decode(output, type=WhatIfFailure)
    raise InvalidArgument(failure.error) if failure.is_callers else Unavailable(failure.error)
