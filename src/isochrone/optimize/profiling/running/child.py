"""The process that runs the model: reads requests, one per line, and answers each.

A crash of the model's runtime, or an end for lack of memory, ends this process and not the command. It ends when its
standard input does, so it does not outlive the command.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import BinaryIO

from isochrone.errors import IsochroneError
from isochrone.observe.logs import configure
from isochrone.optimize.profiling.running.loaded import LoadedModel
from isochrone.optimize.profiling.running.messages import (
    Failed,
    Measure,
    Open,
    Opened,
    Operators,
    Request,
    Response,
    decode_request,
    encode,
)


def serve(requests: BinaryIO, responses: BinaryIO) -> None:
    model: LoadedModel | None = None
    for line in requests:
        request = decode_request(line)
        answer: Response
        try:
            if isinstance(request, Open):
                model = LoadedModel(Path(request.repository), request.model, request.version, request.shapes)
                answer = Opened()
            else:
                assert model is not None
                answer = _run(model, request)
        except IsochroneError as error:
            answer = Failed(error.message)
        except MemoryError:
            answer = Failed("the model needs more memory than is free")
        except Exception as error:
            answer = Failed(f"{type(error).__name__}: {error}")
        responses.write(encode(answer))
        responses.flush()


def _run(model: LoadedModel, request: Request) -> Response:
    if isinstance(request, Measure):
        return model.measure(request.batch, request.threads, request.instances, request.least_seconds, request.seconds)
    assert not isinstance(request, Open)
    return Operators(model.operators(request.batch, request.threads, request.seconds))


def main() -> None:
    responses = os.fdopen(os.dup(1), "wb")
    # What a model prints must not be taken for an answer.
    os.dup2(2, 1)
    configure(info=False)
    serve(sys.stdin.buffer, responses)


if __name__ == "__main__":
    main()
