"""One choice of an answer, from the responses of a model: text, log probabilities, tokens, finish reason. Pure.

A model may send the whole text in one response or in any number of pieces; each response has what was added.
"""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from isochrone.errors import ModelFailed
from isochrone.protocol.openai.tensors import TEXT_OUTPUT

if TYPE_CHECKING:
    from isochrone.protocol.messages import Tensors


class Alternative(NamedTuple):
    """A token and the logarithm of its probability."""

    token: str
    logprob: float


class TokenLogprobs(NamedTuple):
    """A token of the answer, and the most probable ones at its place."""

    chosen: Alternative
    top: tuple[Alternative, ...]


class _Logprob(msgspec.Struct):
    """As vLLM writes it."""

    logprob: float
    decoded_token: str | None = None


#: By token id; the chosen token comes first.
_logprobs = msgspec.json.Decoder(list[dict[str, _Logprob]] | None)


class Piece(NamedTuple):
    """What one response adds."""

    text: str
    logprobs: list[TokenLogprobs]


class Choice:
    """The state of one choice."""

    def __init__(self, index: int, prompt: int, top: int | None = None) -> None:
        """``prompt``: the number of its prompt; ``top``: alternatives per token, None: no log probabilities."""
        self.index = index
        self.prompt = prompt
        self.finish_reason = "stop"
        #: None: the model does not say.
        self.input_tokens: int | None = None
        self.output_tokens: int | None = None
        self.is_finished = False
        self._top = top
        # A piece may end inside a character.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def take(self, outputs: Tensors) -> Piece:
        """The model's next response."""
        if TEXT_OUTPUT not in outputs:
            raise ModelFailed(f"the model's response has no output '{TEXT_OUTPUT}'")
        text = self._decoder.decode(b"".join(_bytes(value) for value in outputs[TEXT_OUTPUT].ravel()))
        reason = _first_text(outputs, "finish_reason")
        if reason not in ("", "None"):
            # The others are of vLLM's own, such as "abort".
            self.finish_reason = reason if reason in ("stop", "length", "content_filter") else "stop"
        self.input_tokens = _count(outputs, "num_input_tokens", self.input_tokens)
        added = _count(outputs, "num_output_tokens", None)
        if added is not None:
            self.output_tokens = (self.output_tokens or 0) + added
        return Piece(text, self._read_logprobs(outputs) if self._top is not None else [])

    def end(self) -> str:
        """The rest of the text: a character of which the last bytes have not come."""
        self.is_finished = True
        return self._decoder.decode(b"", final=True)

    def _read_logprobs(self, outputs: Tensors) -> list[TokenLogprobs]:
        text = _first_text(outputs, "logprobs")
        if not text:
            return []
        try:
            tokens = _logprobs.decode(text)
        except msgspec.DecodeError as error:
            raise ModelFailed(f"the model's output 'logprobs' cannot be read: {error}") from None
        found: list[TokenLogprobs] = []
        for by_id in tokens or ():
            known = [Alternative(one.decoded_token or "", one.logprob) for one in by_id.values()]
            if known:
                ranked = sorted(known, key=lambda one: one.logprob, reverse=True)
                found.append(TokenLogprobs(known[0], tuple(ranked[: self._top or 0])))
        return found


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def _first_text(outputs: Tensors, name: str) -> str:
    array = outputs.get(name)
    if array is None or not array.size:
        return ""
    return _bytes(array.ravel()[0]).decode("utf-8", "replace")


def _count(outputs: Tensors, name: str, otherwise: int | None) -> int | None:
    array = outputs.get(name)
    if array is None or not array.size:
        return otherwise
    return int(np.asarray(array).ravel()[0])
