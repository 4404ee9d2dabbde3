"""Sections of settings files: frozen pydantic models that are strict about keys and types."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from isochrone.settings.documents import Document
from isochrone.settings.expectations import problems_of
from isochrone.settings.problems import settings_error


class Section(BaseModel):
    """A part of a file. Unknown keys are errors; no value is converted to another type silently."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        use_attribute_docstrings=True,
        serialize_by_alias=True,
        allow_inf_nan=False,
    )

    @model_validator(mode="before")
    @classmethod
    def _nothing_given(cls, given: Any) -> Any:
        """``security:`` with nothing behind it is a section that leaves everything out."""
        return {} if given is None else given


S = TypeVar("S", bound=Section)


def read_section(kind: type[S], document: Document) -> S:
    """The section in a document. Raises ``SettingsError`` with all its errors."""
    try:
        return kind.model_validate(document.data)
    except ValidationError as error:
        raise settings_error(problems_of(error, kind), document.where, document.lines) from None
