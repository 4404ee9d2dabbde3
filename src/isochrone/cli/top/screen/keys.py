"""Bytes of a terminal → names of keys. Pure: the shell says when a lone escape has waited long enough."""

from __future__ import annotations

import codecs
import re
from typing import Final

_ESCAPE: Final = "\x1b"
_SINGLE: Final = {
    "\r": "enter",
    "\n": "enter",
    "\t": "tab",
    "\x7f": "backspace",
    "\x08": "backspace",
    "\x15": "clear",
}
_ARROWS: Final = {"A": "up", "B": "down", "C": "right", "D": "left", "H": "home", "F": "end"}
#: By the parameters and the last character of a sequence: of xterm, the Linux console, rxvt, screen and tmux.
_SEQUENCES: Final = {
    **{f"[{end}": key for end, key in _ARROWS.items()},
    **{f"O{end}": key for end, key in _ARROWS.items()},
    "[1~": "home",
    "[7~": "home",
    "[4~": "end",
    "[8~": "end",
    "[5~": "page up",
    "[6~": "page down",
    "[3~": "backspace",
    "[Z": "back tab",
    "OM": "enter",
}
_SEQUENCE: Final = re.compile(r"\[[0-?]*[ -/]*[@-~]|O[ -~]")
_UNFINISHED: Final = re.compile(r"\[[0-?]*[ -/]*|O?")
#: Characters after which an unfinished sequence is none.
_LONGEST: Final = 32


class KeyReader:
    """Keeps what may be the beginning of a sequence."""

    def __init__(self) -> None:
        # Bytes that are no UTF-8 become a replacement character, which no key has.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._kept = ""

    @property
    def is_waiting(self) -> bool:
        """An escape came, and perhaps more comes: call ``give_up`` after a moment without bytes."""
        return bool(self._kept)

    def feed(self, received: bytes) -> list[str]:
        text, self._kept = self._kept + self._decoder.decode(received), ""
        keys: list[str] = []
        while text:
            if text[0] != _ESCAPE:
                key = _SINGLE.get(text[0], text[0] if text[0].isprintable() else "")
                keys += [key] if key else []
                text = text[1:]
                continue
            rest = text[1:]
            if found := _SEQUENCE.match(rest):
                # Unknown sequences (a mouse, function keys) are no keys.
                keys += [_SEQUENCES[found[0]]] if found[0] in _SEQUENCES else []
                text = rest[found.end() :]
            elif _UNFINISHED.fullmatch(rest) and len(rest) < _LONGEST:
                self._kept = text
                return keys
            else:
                keys.append("escape")
                text = rest
        return keys

    def give_up(self) -> list[str]:
        """What was kept is no sequence: an escape, and the characters after it."""
        kept, self._kept = self._kept, ""
        return ["escape", *(key for key in kept[1:] if key.isprintable())] if kept else []
