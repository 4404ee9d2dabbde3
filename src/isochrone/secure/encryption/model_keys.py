"""The keys of a process for encrypted versions: ``file:PATH``, ``env:NAME`` or ``command:PROGRAM ARGUMENTS``.

A local key is 32 bytes in hexadecimal, as ``openssl rand -hex 32`` writes them. Files are read at every use, so a new
key needs no restart. A variable is read once and leaves the environment: the processes of models do not inherit it.
"""

from __future__ import annotations

import base64
import os
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from isochrone.errors import FlagError
from isochrone.secure.encryption.commands import run_command
from isochrone.secure.encryption.failures import EncryptionRefused, NoKey
from isochrone.secure.encryption.streams import KEY_BYTES
from isochrone.secure.encryption.wrapping import COMMAND, LOCAL, WrappedKey, key_id, unwrap, wrap
from isochrone.secure.secret_file import read_secret

FLAG: Final = "--model-key"
#: The forms of a source, for help.
METAVAR: Final = "file:PATH|env:NAME|command:PROGRAM"
_EXPECTED: Final = "file:PATH, env:NAME or command:PROGRAM ARGUMENTS"
_HEXADECIMAL: Final = "a key of 32 bytes in hexadecimal, as 'openssl rand -hex 32' writes one"


@dataclass(frozen=True, slots=True)
class _File:
    path: str
    flag: str

    def key(self) -> bytes:
        return _parse(read_secret(self.path, self.flag), self.flag, self.path)


@dataclass(frozen=True, slots=True)
class _Variable:
    secret: bytes = field(repr=False)

    def key(self) -> bytes:
        return self.secret


@dataclass(frozen=True, slots=True)
class _Command:
    words: tuple[str, ...]


class _Wrapped(msgspec.Struct):
    id: str
    wrapped: str


class ModelKeys:
    """In the order of the sources. Calls block: they read files and run programs."""

    def __init__(self, sources: Sequence[str], flag: str = FLAG) -> None:
        """Raises ``FlagError``, also for a key that is none."""
        self._local: list[_File | _Variable] = []
        self._commands: list[_Command] = []
        self._first: _File | _Variable | _Command | None = None
        for text in sources:
            source = _read_source(text, flag)
            if isinstance(source, _Command):
                self._commands.append(source)
            else:
                source.key()
                self._local.append(source)
            self._first = self._first or source

    def wrap(self, data_key: bytes, model: str, version: str) -> WrappedKey:
        """Under the first source."""
        if isinstance(self._first, _Command):
            return _wrapped_by(self._first, data_key, model, version)
        if self._first is None:
            raise NoKey("no key is given")
        return wrap(self._first.key(), data_key, model, version)

    def unwrap(self, wrapped: WrappedKey, model: str, version: str) -> bytes:
        """The data key of a version; whether it is the right one, the header's proof says. Raises
        ``EncryptionRefused``."""
        if wrapped.by == LOCAL:
            for source in self._local:
                key = source.key()
                if key_id(key) == wrapped.id:
                    found = unwrap(key, wrapped, model, version)
                    if found is None:
                        raise EncryptionRefused("its wrapped key was changed, or made for another version")
                    return found
            raise NoKey(f"it needs the key {wrapped.id!r}, which no {FLAG} has")
        if not self._commands:
            raise NoKey(f"it needs a {FLAG} command:… that unwraps the key {wrapped.id!r}")
        refusals = []
        for command in self._commands:
            try:
                return _unwrapped_by(command, wrapped, model, version)
            except EncryptionRefused as refused:
                refusals.append(str(refused))
        raise NoKey("; ".join(refusals))


def _read_source(text: str, flag: str) -> _File | _Variable | _Command:
    kind, _, rest = text.partition(":")
    if kind == "file" and rest:
        return _File(str(Path(rest).expanduser().absolute()), flag)
    if kind == "env" and rest:
        secret = os.environ.pop(rest, None)
        if secret is None:
            raise FlagError(flag, f"a variable {rest}, which is set", "none")
        return _Variable(_parse(secret.strip().encode(), flag, f"the variable {rest}"))
    if kind == "command" and rest.strip():
        try:
            words = tuple(shlex.split(rest))
        except ValueError as error:
            raise FlagError(flag, "a program and its arguments, quoted as for a shell", str(error)) from None
        if shutil.which(words[0]) is None:
            raise FlagError(flag, "a program that can be run", words[0])
        return _Command(words)
    # A key that somebody gave in place of its source must not be printed.
    raise FlagError(flag, _EXPECTED, f"{kind}:" if rest and kind.isalpha() else "something else")


def _parse(secret: bytes, flag: str, where: str) -> bytes:
    try:
        key = bytes.fromhex(secret.decode("ascii"))
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise FlagError(flag, _HEXADECIMAL, f"something else in {where}")
    return key


def _wrapped_by(command: _Command, data_key: bytes, model: str, version: str) -> WrappedKey:
    fields = {"key": base64.b64encode(data_key).decode(), "model": model, "version": version}
    output = run_command(command.words, msgspec.json.encode({"operation": "wrap", **fields}))
    try:
        found = msgspec.json.decode(output, type=_Wrapped)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        expected = '{"id": "…", "wrapped": "…"}'
        raise EncryptionRefused(f"the key command {command.words[0]} did not print {expected}") from None
    return WrappedKey(COMMAND, found.id, found.wrapped)


def _unwrapped_by(command: _Command, wrapped: WrappedKey, model: str, version: str) -> bytes:
    fields = {"id": wrapped.id, "wrapped": wrapped.wrapped, "model": model, "version": version}
    output = run_command(command.words, msgspec.json.encode({"operation": "unwrap", **fields}))
    try:
        key = base64.b64decode(output.strip(), validate=True)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise EncryptionRefused(f"the key command {command.words[0]} did not print {KEY_BYTES} bytes in base64")
    return key
