"""Renders chats by a model's template, in Jinja with the conventions of Hugging Face's templates.

Templates come with models: they run in a sandbox that neither changes objects nor reaches beyond them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from isochrone.errors import ConfigError, InvalidArgument


class _GenerationTag(Extension):
    """``{% generation %}`` marks what a model said, for training; it renders its content."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """One template. Any thread may render it."""

    def __init__(self, source: str, where: str, special_tokens: Mapping[str, str]) -> None:
        """``where`` is the file, for errors; ``special_tokens`` are the names that the template knows them by."""
        self._special_tokens = dict(special_tokens)
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        try:
            self._template: Template = environment.from_string(source)
        except (TemplateError, RecursionError) as error:
            raise ConfigError(where, "chat_template", "a template of Jinja", str(error)) from error

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        try:
            return self._template.render(
                messages=list(messages), add_generation_prompt=True, tools=None, documents=None, **self._special_tokens
            )
        except Exception as error:  # whatever a template does with messages that it does not expect
            raise InvalidArgument(f"messages: the model's chat template rejects them: {error}") from error


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Without Jinja's escapes for HTML, which a model would read."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)
