"""Plans of REST requests, memoised by the bytes of their JSON part without the request's id.

The JSON part repeats from request to request if the tensors are binary, apart from the id. Clients write the id first,
as the protocol lists it, so it is cut off there: behind it comes the same text again. Text that begins in another way
is memoised as a whole, unless it has an id.
"""

from __future__ import annotations

import re

from isochrone.protocol.rest.plan import RestPlan, decode_plan

#: An id at the beginning, whose text is its value: without escapes.
_leading_id = re.compile(rb'[ \t\r\n]*\{[ \t\r\n]*"id"[ \t\r\n]*:[ \t\r\n]*"([^"\\\x00-\x1f]*)"[ \t\r\n]*,').match
_MAX_HEADER_MEMOISED = 4096
_MAX_PLANS_MEMOISED = 8192


class PlanMemo:
    """Plans for one model and version, as named in the path."""

    __slots__ = ("_memos", "_model", "_plans", "_version")

    def __init__(self, memos: PlanMemos, model: str, version: str) -> None:
        self._memos = memos
        self._model = model
        self._version = version
        self._plans: dict[bytes, RestPlan] = {}

    def decode(self, header: bytes) -> tuple[RestPlan, str]:
        """The plan of a JSON part, and the request's id."""
        plan = self._plans.get(header)
        if plan is not None:
            return plan, ""
        leading = _leading_id(header)
        if leading is None:
            plan, request_id = decode_plan(header, self._model, self._version)
            if not request_id:
                self._keep(header, plan)
            return plan, request_id
        rest = header[leading.end() :]
        try:
            leading_id = leading[1].decode()
        except UnicodeDecodeError:
            # Decoding reports that.
            return decode_plan(header, self._model, self._version)
        plan = self._plans.get(rest)
        if plan is None:
            plan, request_id = decode_plan(header, self._model, self._version)
            if request_id != leading_id:
                return plan, request_id  # a second id follows
            self._keep(rest, plan)
        return plan, leading_id

    def _keep(self, key: bytes, plan: RestPlan) -> None:
        # A plan with inline data does not repeat.
        if plan.is_plain and len(key) <= _MAX_HEADER_MEMOISED:
            self._memos.make_room()
            self._plans[key] = plan

    def clear(self) -> None:
        self._plans.clear()


class PlanMemos:
    """The memos of all models; together they hold a bounded number of plans."""

    def __init__(self) -> None:
        self._memos: dict[tuple[str, str], PlanMemo] = {}
        self._plans = 0

    def of(self, model: str, version: str) -> PlanMemo:
        memo = self._memos.get((model, version))
        if memo is None:
            if len(self._memos) >= _MAX_PLANS_MEMOISED:
                self._clear()
                self._memos.clear()
            memo = self._memos[(model, version)] = PlanMemo(self, model, version)
        return memo

    def make_room(self) -> None:
        """A plan is added."""
        self._plans += 1
        if self._plans > _MAX_PLANS_MEMOISED:
            self._clear()
            self._plans = 1

    def _clear(self) -> None:
        # Routes hold their memo: it is emptied, not replaced.
        for memo in self._memos.values():
            memo.clear()
