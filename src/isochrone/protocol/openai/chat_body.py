"""The body of ``POST /v1/chat/completions``. Pure.

The messages go to the model as JSON, a list of objects with ``role`` and ``content``: its chat template is applied
where its tokenizer is. Parts of a content are joined, since templates know texts alone.
"""

from __future__ import annotations

from typing import Any

import msgspec

from isochrone.protocol.openai.call import Body, CompletionCall, flag, text, unsupported, whole, wrong
from isochrone.protocol.openai.options import (
    read_choices,
    read_parameters,
    read_sampling,
    read_stream,
    reject_others,
)

_OWN = frozenset(("messages", "max_completion_tokens", "top_logprobs"))
#: ``developer`` is the newer name of ``system``, which chat templates do not know.
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_MOST_LOGPROBS = 20


def read_chat(body: Body) -> CompletionCall:
    reject_others(body, _OWN)
    streams, includes_usage = read_stream(body)
    logprobs = whole(body, "top_logprobs", 0, _MOST_LOGPROBS)
    wants_logprobs = flag(body, "logprobs")
    if logprobs is not None and not wants_logprobs:
        raise wrong("top_logprobs", "'logprobs' to be true", logprobs)
    return CompletionCall(
        text(body, "model"),
        True,
        (msgspec.json.encode(_messages(body.get("messages"))).decode(),),
        read_choices(body, 1),
        streams,
        includes_usage,
        False,
        (logprobs or 0) if wants_logprobs else None,
        read_sampling(body, "max_completion_tokens", "max_tokens"),
        read_parameters(body),
    )


def _messages(given: Any) -> list[dict[str, str]]:
    if not isinstance(given, list) or not given:
        raise wrong("messages", "a list with at least one message", given)
    return [_message(f"messages[{index}]", message) for index, message in enumerate(given)]


def _message(where: str, message: Any) -> dict[str, str]:
    if not isinstance(message, dict):
        raise wrong(where, "an object with 'role' and 'content'", message)
    role = message.get("role")
    if role in ("tool", "function") or message.get("tool_calls") or message.get("function_call"):
        raise unsupported(where, "models call no tools here")
    if not isinstance(role, str) or role not in _ROLES:
        raise wrong(f"{where}.role", f"one of {', '.join(_ROLES)}", role)
    if message.get("audio") is not None:
        raise unsupported(f"{where}.audio", "messages are text")
    read = {"role": _ROLES[role], "content": _content(f"{where}.content", message.get("content"), role)}
    name = message.get("name")
    if name is not None:
        if not isinstance(name, str):
            raise wrong(f"{where}.name", "a string", name)
        read["name"] = name
    return read


def _content(where: str, content: Any, role: str) -> str:
    if isinstance(content, str):
        return content
    if content is None and role == "assistant":
        return ""
    if not isinstance(content, list):
        raise wrong(where, "a string or a list of text parts", content)
    parts: list[str] = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and kind != "text":
            raise unsupported(f"{where}[{index}]", f"a part of type {kind[:40]!r}; messages are text")
        if kind is None or not isinstance(part.get("text"), str):
            raise wrong(f"{where}[{index}]", "an object with 'type' and 'text'", part)
        parts.append(part["text"])
    return "".join(parts)
