"""The thread that makes tokens of prompts, so that a long one delays neither steps nor the event loop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING

from isochrone.errors import Cancelled, IsochroneError, ModelFailed
from isochrone.worker.generation.job import Job

if TYPE_CHECKING:
    from isochrone.worker.backends.generative import Tokenizer

#: (job, text and tokens, or the error): called on the thread.
Prepared = Callable[[Job, "tuple[str, list[int]] | IsochroneError"], None]


class PromptThread:
    """The thread of one model version."""

    def __init__(self, name: str) -> None:
        self._inbox: SimpleQueue[tuple[Job, Tokenizer, Prepared] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Job, tokenizer: Tokenizer, prepared: Prepared) -> None:
        self._inbox.put((job, tokenizer, prepared))

    def close(self) -> None:
        """Waits for the thread."""
        self._inbox.put(None)
        self._thread.join()

    def _serve(self) -> None:
        while (item := self._inbox.get()) is not None:
            job, tokenizer, prepared = item
            if not job.request.cancelled and not job.is_over:
                prepared(job, _prompt(job, tokenizer))
            else:
                prepared(job, Cancelled("the request was cancelled"))
            # Nothing is kept of it while the thread waits.
            del item, job, tokenizer, prepared


def _prompt(job: Job, tokenizer: Tokenizer) -> tuple[str, list[int]] | IsochroneError:
    try:
        return job.wanted.prompt(tokenizer)
    except IsochroneError as error:
        return error
    except BaseException as error:
        return ModelFailed(f"the tokenizer failed: {type(error).__name__}: {error}")
