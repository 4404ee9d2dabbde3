"""Plans of REST requests, memoised by the bytes of their JSON part without the request's id.

The JSON part repeats from request to request if the tensors are binary, apart from the id. Clients write the id first,
as the protocol lists it, so it is cut off there: behind it comes the same text again. Text that begins in another way
is memoised as a whole, unless it has an id.
"""

from __future__ import annotations

import re

from isochrone.protocol.rest.plan import RestPlan, decode_plan

#: An id at the beginning, whose text is its value: without escapes.
_leading_id = re.compile(rb'[ \t\r\n]*\{[ \t\r\n]*"id"[ \t\r\n]*:[ \t\r\n]*"([^"\\\x00-\x1f]+)"[ \t\r\n]*,').match
#: An id begins in these bytes, or is not found.
_LEADING = 16
_MAX_HEADER_MEMOISED = 4096
_MAX_PLANS_MEMOISED = 8192


class PlanMemo:
    """The plans of all models. Bounded, and emptied when full."""

    __slots__ = ("_behind_id", "_whole")

    def __init__(self) -> None:
        #: By model and version as named in the path, and text: the whole JSON part, and what follows the id.
        self._whole: dict[tuple[str, str, bytes], RestPlan] = {}
        self._behind_id: dict[tuple[str, str, bytes], RestPlan] = {}

    def decode(self, model: str, version: str, header: bytes) -> tuple[RestPlan, str]:
        """The plan of a JSON part, and the request's id."""
        leading = _leading_id(header) if b'"id"' in header[:_LEADING] else None
        if leading is None:
            plan = self._whole.get((model, version, header))
            if plan is not None:
                return plan, ""
            plan, request_id = decode_plan(header, model, version)
            if not request_id:
                self._keep(self._whole, (model, version, header), plan)
            return plan, request_id
        try:
            leading_id = leading[1].decode()
        except UnicodeDecodeError:
            # Decoding reports that.
            return decode_plan(header, model, version)
        key = (model, version, header[leading.end() :])
        plan = self._behind_id.get(key)
        if plan is None:
            plan, request_id = decode_plan(header, model, version)
            # The text may have a second id, which would hold.
            if request_id != leading_id or decode_plan(b"{" + key[2], model, version)[1]:
                return plan, request_id
            self._keep(self._behind_id, key, plan)
        return plan, leading_id

    def _keep(self, memo: dict[tuple[str, str, bytes], RestPlan], key: tuple[str, str, bytes], plan: RestPlan) -> None:
        # A plan with inline data does not repeat.
        if plan.is_plain and len(key[2]) <= _MAX_HEADER_MEMOISED:
            if len(self._whole) + len(self._behind_id) >= _MAX_PLANS_MEMOISED:
                self._whole.clear()
                self._behind_id.clear()
            memo[key] = plan
