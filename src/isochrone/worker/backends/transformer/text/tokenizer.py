"""Text to tokens and back: tokenizer.json by the ``tokenizers`` package, with what the files beside it say about
special tokens and chats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from isochrone.errors import ConfigError, InvalidArgument
from isochrone.worker.backends.transformer.checkpoint.fields import Fields, read_fields
from isochrone.worker.backends.transformer.text.chat import ChatTemplate

_REPLACEMENT = "\ufffd"
_SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")


class FileTokenizer:
    """A ``generative.Tokenizer`` of a checkpoint's folder."""

    def __init__(self, tokenizers: Any, directory: Path, config: Fields, vocabulary: int) -> None:
        """``tokenizers`` is the package, ``config`` the content of config.json."""
        path = directory / "tokenizer.json"
        if not path.is_file():
            raise ConfigError(str(path), "file", "a tokenizer of the tokenizers package", "no such file")
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:
            raise ConfigError(str(path), "file", "a tokenizer of the tokenizers package", str(error)) from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        largest = max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        if largest >= vocabulary:
            raise ConfigError(
                str(path), "vocabulary", f"tokens below config.json's vocab_size {vocabulary}", str(largest)
            )
        settings = read_fields(directory / "tokenizer_config.json", required=False)
        special = {name: text for name in _SPECIAL if (text := _token_text(settings, name)) is not None}
        self._begin = self._tokenizer.token_to_id(special["bos_token"]) if "bos_token" in special else None
        #: None: as tokenizer.json says.
        self._adds_begin = settings.boolean("add_bos_token", False) if "add_bos_token" in settings else None
        self.end_tokens = self._end_tokens(directory, config, special.get("eos_token"))
        self._template = _chat_template(directory, settings, special)
        #: Then a text is the bytes of its tokens, one after the other, and nothing else.
        self._is_byte_level = type(self._tokenizer.decoder).__name__ == "ByteLevel"
        #: The pieces that are known. A call of the package takes 3 µs or more, and a token without a piece needs two.
        self._pieces: dict[int, str | None] = {}

    def encode(self, text: str, *, special: bool) -> list[int]:
        try:
            # As a batch: ``encode`` would hold the interpreter for as long as it takes, and steps and the loop with it.
            (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=special)
            tokens: list[int] = encoding.ids
        except Exception as error:
            raise InvalidArgument(f"text: the model's tokenizer rejects it: {error}") from error
        if special and self._begin is not None and self._adds_begin is not None:
            begins = bool(tokens) and tokens[0] == self._begin
            if self._adds_begin and not begins:
                tokens.insert(0, self._begin)
            elif begins and not self._adds_begin and not text.startswith(self._tokenizer.id_to_token(self._begin)):
                del tokens[0]
        return tokens

    def decode(self, tokens: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=True)
        return text

    def piece(self, token: int) -> str | None:
        try:
            return self._pieces[token]
        except KeyError:
            text = self.decode((token,)) if self._is_byte_level else None
            # A part of a character becomes one only with the tokens beside it.
            self._pieces[token] = text = None if text is None or _REPLACEMENT in text else text
            return text

    def render_chat(self, messages: Sequence[Mapping[str, Any]]) -> str:
        if self._template is None:
            raise InvalidArgument("messages: the model has no chat template; send a prompt instead")
        return self._template.render(messages)

    def _end_tokens(self, directory: Path, config: Fields, named: str | None) -> frozenset[int]:
        generation = read_fields(directory / "generation_config.json", required=False)
        tokens = set(generation.integers("eos_token_id") or config.integers("eos_token_id"))
        # Chat models end an answer with a token of their own, which only tokenizer_config.json may name.
        number = self._tokenizer.token_to_id(named) if named is not None else None
        if number is not None:
            tokens.add(number)
        return frozenset(tokens)


def _token_text(settings: Fields, name: str) -> str | None:
    """A special token is a string, or an object with its content."""
    value = settings.get(name)
    if isinstance(value, dict):
        value = value.get("content")
    if value is not None and not isinstance(value, str):
        settings.reject(name, "a string, or an object with the string as content")
    return value


def _chat_template(directory: Path, settings: Fields, special: Mapping[str, str]) -> ChatTemplate | None:
    path = directory / "chat_template.jinja"
    if path.is_file():
        try:
            return ChatTemplate(path.read_text("utf-8"), str(path), special)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(str(path), "file", "readable text in UTF-8", str(error)) from error
    source = settings.get("chat_template")
    if isinstance(source, list):
        # Several templates by name; the others are for calls of tools and the like.
        named = {each.get("name"): each.get("template") for each in source if isinstance(each, dict)}
        source = named.get("default")
    if source is None:
        return None
    if not isinstance(source, str):
        settings.reject("chat_template", "a string, or a list of objects with name and template")
    return ChatTemplate(source, settings.where, special)
