"""The JSON part of an infer request, as msgspec decodes it."""

from __future__ import annotations

from typing import Any

import msgspec


class Input(msgspec.Struct):
    name: str
    shape: list[int]
    datatype: str
    parameters: dict[str, Any] = {}
    data: Any = None


class Output(msgspec.Struct):
    name: str
    parameters: dict[str, Any] = {}


class Header(msgspec.Struct):
    inputs: list[Input]
    id: str = ""
    outputs: list[Output] | None = None
    parameters: dict[str, Any] = {}
