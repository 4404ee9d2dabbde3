"""Ends a stream or a WebSocket whose caller may not have it any more: a token that is revoked, a session that ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: Seconds between two looks. A keeper renews its grants as often.
INTERVAL: Final = 1.0
#: Seconds in which an application may notice that its WebSocket is closed.
_GRACE: Final = 5.0
#: RFC 6455, section 7.4.1.
_POLICY_VIOLATION: Final = 1008
_REASON: Final = b"the caller may not read this any more\n"


async def while_allowed(
    app: ASGIApp, scope: Scope, receive: Receive, send: Send, is_allowed: Callable[[], bool]
) -> None:
    """Run an application for one request. What is answered within an interval is checked by the caller alone."""
    state = _Answer(send)
    serving = asyncio.ensure_future(app(scope, receive, state.send))
    try:
        while True:
            done, _ = await asyncio.wait((serving,), timeout=INTERVAL)
            if done:
                return serving.result()
            if not is_allowed():
                break
        # From here on, nothing of the application gets out.
        state.has_ended = True
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": _REASON.decode().strip()})
            # The application receives the disconnection, and leaves in order.
            await asyncio.wait((serving,), timeout=_GRACE)
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
    if scope["type"] == "http" and not state.is_complete:
        if not state.has_started:
            await send({"type": "http.response.start", "status": 401, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": b"" if state.has_started else _REASON, "more_body": False})


class _Answer:
    """What an application has sent so far."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.has_started = False
        self.is_complete = False
        self.has_ended = False

    async def send(self, message: Message) -> None:
        if self.has_ended:
            return
        self.has_started = self.has_started or message["type"] == "http.response.start"
        self.is_complete = message["type"] == "http.response.body" and not message.get("more_body", False)
        await self._send(message)
