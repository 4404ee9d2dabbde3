"""One choice of an answer, from the responses of a model: text, log probabilities, tokens, finish reason. Pure.

A model may send the whole text in one response or in any number of pieces; each response has what was added.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

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
    logprobs: Sequence[TokenLogprobs]


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
        """The model's next response. Called for every token of every stream: it takes some 2 µs."""
        given = outputs.get(TEXT_OUTPUT)
        if given is None:
            raise ModelFailed(f"the model's response has no output '{TEXT_OUTPUT}'")
        value = given.item() if given.size == 1 else b"".join(_bytes(value) for value in given.ravel())
        text = self._decoder.decode(value if type(value) is bytes else _bytes(value))
        reason = _first(outputs, "finish_reason")
        if reason is not None and reason != b"None":
            self._set_reason(_bytes(reason).decode("utf-8", "replace"))
        count = _first(outputs, "num_input_tokens")
        if count is not None:
            self.input_tokens = int(count)
        added = _first(outputs, "num_output_tokens")
        if added is not None:
            self.output_tokens = (self.output_tokens or 0) + int(added)
        return Piece(text, () if self._top is None else self._read_logprobs(outputs))

    def _set_reason(self, reason: str) -> None:
        if reason not in ("", "None"):
            # The others are of vLLM's own, such as "abort".
            self.finish_reason = reason if reason in ("stop", "length", "content_filter") else "stop"

    def end(self) -> str:
        """The rest of the text: a character of which the last bytes have not come."""
        self.is_finished = True
        return self._decoder.decode(b"", final=True)

    def _read_logprobs(self, outputs: Tensors) -> list[TokenLogprobs]:
        given = _first(outputs, "logprobs")
        text = b"" if given is None else _bytes(given)
        if not text:
            return []
        try:
            tokens = _logprobs.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
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


def _first(outputs: Tensors, name: str) -> Any:
    """The first element of an output; None: there is none."""
    array = outputs.get(name)
    if array is None or not array.size:
        return None
    return array.item() if array.size == 1 else array.flat[0]
