"""The OpenAPI 3.1 document, generated from the list of operations and their types."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

import isochrone
from isochrone.control.api.messages import ErrorAnswer
from isochrone.control.api.operation import Operation

_PARAMETER = re.compile(r"{(\w+)}")
_USER = {
    "name": "x-isochrone-user",
    "in": "header",
    "required": False,
    "schema": {"type": "string"},
    "description": "The requester; stored with what is written.",
}

_TOKEN = {
    "name": "authorization",
    "in": "header",
    "required": False,
    "schema": {"type": "string"},
    "description": "``Bearer TOKEN``, where the controller has --token-file.",
}


def document(operations: Sequence[Operation]) -> dict[str, Any]:
    types: list[Any] = [ErrorAnswer]
    for operation in operations:
        types += [each for each in (operation.answer, operation.body) if each is not None and each not in types]
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    schema_of = dict(zip(types, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(operation, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Isochrone control API",
            "version": isochrone.__version__,
            "description": "The desired and the observed state of a fleet, and the requests that change it.",
        },
        "paths": paths,
        "components": {"schemas": components},
    }


def _described(operation: Operation, schema_of: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if operation.answer is not None:
        content["application/json"] = {"schema": schema_of[operation.answer]}
    if operation.streams:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PARAMETER.findall(operation.path)
    ]
    parameters += [
        {"name": name, "in": "query", "required": False, "schema": {"type": kind}, "description": text}
        for name, (kind, text) in operation.query.items()
    ]
    if operation.changes:
        parameters += [_USER, _TOKEN]
    described: dict[str, Any] = {
        "summary": operation.summary,
        "operationId": _identity(operation),
        "responses": {
            str(operation.status): {"description": "Done.", "content": content or {"application/json": {}}},
            "default": {
                "description": "An error.",
                "content": {"application/json": {"schema": schema_of[ErrorAnswer]}},
            },
        },
    }
    if parameters:
        described["parameters"] = parameters
    if operation.body is not None:
        described["requestBody"] = {"content": {"application/json": {"schema": schema_of[operation.body]}}}
    return described


def _identity(operation: Operation) -> str:
    words = re.findall(r"[a-z0-9]+", operation.path.removeprefix("/v1").lower())
    return "_".join([operation.method.lower(), *words])
