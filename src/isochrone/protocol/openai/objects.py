"""The JSON objects of answers: whole completions, chunks of streams, usage, log probabilities. Pure.

The chunks of a stream differ in their text alone: what is around it is encoded once per choice.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from isochrone.protocol.openai.choice import Alternative, Choice, TokenLogprobs

#: Stands for the text while what is around it is encoded. Random: no model's name contains it.
_PLACE = f"text-{uuid.uuid4().hex}"
_encode = msgspec.json.Encoder().encode


class AnswerForm:
    """What all objects of one answer have in common, and the form of its kind of call."""

    def __init__(self, model: str, is_chat: bool) -> None:
        self.id = f"{'chatcmpl' if is_chat else 'cmpl'}-{uuid.uuid4().hex}"
        self._model = model
        self._is_chat = is_chat
        self._created = int(time.time())
        #: Names the version's files and configuration; None: not known.
        self.fingerprint: str | None = None
        #: By the index of a choice: the bytes of its chunks before and after the text, and their fingerprint.
        self._around: dict[int, tuple[bytes, bytes, str | None]] = {}

    def whole(self, choices: Iterable[tuple[Choice, str, list[TokenLogprobs]]], usage: Any, logprobs: bool) -> Any:
        """The answer in one object: per choice its text and its tokens."""
        kind = "chat.completion" if self._is_chat else "text_completion"
        rows = []
        for choice, text, tokens in choices:
            row: dict[str, Any] = {"index": choice.index, "finish_reason": choice.finish_reason}
            row["logprobs"] = self._logprobs(tokens, 0) if logprobs else None
            if self._is_chat:
                row["message"] = {"role": "assistant", "content": text, "refusal": None}
            else:
                row["text"] = text
            rows.append(row)
        return {**self._base(kind), "choices": rows, "usage": usage}

    def opening(self, choice: Choice) -> Any:
        """The first chunk of a chat's choice."""
        return self._chunk(choice.index, {"role": "assistant", "content": ""}, None, None)

    def piece(self, choice: Choice, text: str, tokens: Sequence[TokenLogprobs] | None, offset: int) -> Any:
        """``tokens``: None where none are asked for; ``offset``: characters before this piece."""
        logprobs = None if tokens is None else self._logprobs(tokens, offset)
        return self._chunk(choice.index, {"content": text} if self._is_chat else text, None, logprobs)

    def text_event(self, index: int, text: str) -> tuple[bytes, bytes, bytes]:
        """``piece`` of a choice without log probabilities, as a server-sent event in three parts."""
        around = self._around.get(index)
        if around is None or around[2] != self.fingerprint:
            content = {"content": _PLACE} if self._is_chat else _PLACE
            before, _, after = _encode(self._chunk(index, content, None, None)).partition(_encode(_PLACE))
            around = self._around[index] = (b"data: " + before, after + b"\n\n", self.fingerprint)
        return around[0], _encode(text), around[1]

    def closing(self, choice: Choice) -> Any:
        """The last chunk of a choice, with its finish reason."""
        return self._chunk(choice.index, {} if self._is_chat else "", choice.finish_reason, None)

    def usage_chunk(self, usage: Any) -> Any:
        return {**self._base(self._chunk_kind), "choices": [], "usage": usage}

    def _chunk(self, index: int, content: Any, reason: str | None, logprobs: Any) -> Any:
        row: dict[str, Any] = {"index": index, "finish_reason": reason, "logprobs": logprobs}
        row["delta" if self._is_chat else "text"] = content
        return {**self._base(self._chunk_kind), "choices": [row]}

    @property
    def _chunk_kind(self) -> str:
        return "chat.completion.chunk" if self._is_chat else "text_completion"

    def _base(self, kind: str) -> dict[str, Any]:
        base: dict[str, Any] = {"id": self.id, "object": kind, "created": self._created, "model": self._model}
        if self.fingerprint is not None:
            base["system_fingerprint"] = self.fingerprint
        return base

    def _logprobs(self, tokens: Sequence[TokenLogprobs], offset: int) -> Any:
        if self._is_chat:
            rows = [
                {**_token(one.chosen), "top_logprobs": [_token(alternative) for alternative in one.top]}
                for one in tokens
            ]
            return {"content": rows, "refusal": None}
        offsets: list[int] = []
        for one in tokens:
            offsets.append(offset)
            offset += len(one.chosen.token)
        return {
            "tokens": [one.chosen.token for one in tokens],
            "token_logprobs": [one.chosen.logprob for one in tokens],
            "top_logprobs": [dict(one.top) for one in tokens],
            "text_offset": offsets,
        }


def _token(alternative: Alternative) -> dict[str, Any]:
    token, logprob = alternative
    return {"token": token, "logprob": logprob, "bytes": list(token.encode())}


def usage_of(choices: Sequence[Choice]) -> dict[str, int] | None:
    """Tokens of a whole answer; None: the model does not count them. A prompt of several choices counts once."""
    if any(choice.input_tokens is None and choice.output_tokens is None for choice in choices):
        return None
    prompts = {choice.prompt: choice.input_tokens or 0 for choice in choices}
    output = sum(choice.output_tokens or 0 for choice in choices)
    read = sum(prompts.values())
    return {"prompt_tokens": read, "completion_tokens": output, "total_tokens": read + output}
