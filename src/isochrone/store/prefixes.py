"""The range of keys that a prefix covers, which both stores use to read it."""

from __future__ import annotations

_FIRST_SURROGATE, _AFTER_SURROGATES = 0xD800, 0xE000
_LAST_CODE_POINT = 0x10FFFF


def first_after(prefix: str) -> str | None:
    """The first key after all that begin with the prefix; None: there is none.

    Keys are ordered by their UTF-8 bytes, which is the order of their code points.
    """
    for place in range(len(prefix) - 1, -1, -1):
        following = ord(prefix[place]) + 1
        if following == _FIRST_SURROGATE:
            # UTF-8 cannot encode surrogates.
            following = _AFTER_SURROGATES
        if following <= _LAST_CODE_POINT:
            return prefix[:place] + chr(following)
    return None
