"""The xDS messages that this project writes are Envoy's: every field has the published number and type."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from google.protobuf.descriptor import FieldDescriptor

from bench.worker.peers.process import PeerUnavailable, environment_python
from isochrone.control.xds import messages

pytestmark = pytest.mark.peers


def test_fields_are_the_published_ones() -> None:
    try:
        python = environment_python("xds")
    except PeerUnavailable as error:
        pytest.skip(str(error))
    ours: dict[str, dict[str, list[object]]] = {}
    for package, named in messages.PACKAGES.items():
        for name in named:
            # A map's entry has no class of its own.
            if not name.endswith("Entry"):
                descriptor = messages.descriptor(f"{package}.{name}")
                ours[descriptor.full_name] = {field.name: _facts(field) for field in descriptor.fields}
    asked = json.dumps({name: list(fields) for name, fields in ours.items()})
    program = Path(__file__).with_name("xds_field_facts.py")
    ended = subprocess.run([python, program], input=asked, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    published = json.loads(ended.stdout)
    assert sum(map(len, ours.values())) > 100
    assert ours == published


def _facts(field: FieldDescriptor) -> list[object]:
    return [field.number, field.type, field.is_repeated, field.message_type.full_name if field.message_type else ""]
