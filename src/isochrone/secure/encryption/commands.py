"""Runs the operator's program that wraps and unwraps data keys: the hook for a KMS.

It gets one JSON object on standard input and prints one answer. It is started without a shell, within a time limit.
What it prints is never logged and is in no error, nor is what it writes to standard error.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
from collections.abc import Sequence
from time import monotonic
from typing import Final

from isochrone.secure.encryption.failures import EncryptionRefused

SECONDS: Final = 30.0
MAX_OUTPUT: Final = 64 << 10


def run_command(words: Sequence[str], request: bytes, seconds: float = SECONDS) -> bytes:
    """What the program printed. Raises ``EncryptionRefused``. ``request``: less than a pipe holds."""
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # Its children end with it.
            start_new_session=True,
        )
    except OSError as error:
        raise EncryptionRefused(f"the key command {words[0]} cannot be started: {error.strerror or error}") from None
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        # A program that reads nothing may answer all the same.
        with contextlib.suppress(BrokenPipeError), process.stdin as standard_input:
            standard_input.write(request)
        ends = monotonic() + seconds
        output = _read(process.stdout.fileno(), ends, words[0], seconds)
        status = process.wait(max(0.0, ends - monotonic()))
    except subprocess.TimeoutExpired:
        raise _too_slow(words[0], seconds) from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()
        process.wait()
    if status:
        ended = f"signal {-status}" if status < 0 else f"status {status}"
        raise EncryptionRefused(f"the key command {words[0]} ended with {ended}; run it by hand to see why")
    return output


def _read(descriptor: int, ends: float, program: str, seconds: float) -> bytes:
    output = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while True:
            if not selector.select(max(0.0, ends - monotonic())):
                raise _too_slow(program, seconds)
            part = os.read(descriptor, 1 << 16)
            if not part:
                return bytes(output)
            output += part
            if len(output) > MAX_OUTPUT:
                raise EncryptionRefused(f"the key command {program} printed more than {MAX_OUTPUT} bytes")


def _too_slow(program: str, seconds: float) -> EncryptionRefused:
    return EncryptionRefused(f"the key command {program} did not end within {seconds:g} s")
