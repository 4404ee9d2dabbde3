"""The JSON schema of fleet.yaml, for editors and for programs that write the file.

Published as docs/fleet.schema.json: ``python -m isochrone.control.fleet.settings.schema docs/fleet.schema.json``
writes it, and a test keeps it current.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from isochrone.control.fleet.settings.spec import Fleet

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def fleet_schema() -> dict[str, Any]:
    """The schema. A file that fits it may still be rejected: a schema cannot express all rules."""
    schema = Fleet.model_json_schema(by_alias=True, mode="validation")
    return {"$schema": DIALECT, **_open(schema), "type": "object", "title": "fleet.yaml"}


def _open(part: Any, key: str = "") -> Any:
    """Allow null for sections: an empty section is null in YAML."""
    if isinstance(part, list):
        return [_open(item) for item in part]
    if not isinstance(part, dict):
        return part
    opened = {name: _open(value, name) for name, value in part.items()}
    if opened.get("type") == "object" and key != "properties":
        opened["type"] = ["object", "null"]
    return opened


def schema_text() -> str:
    return json.dumps(fleet_schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(schema_text(), encoding="utf-8")
