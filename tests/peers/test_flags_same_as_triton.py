"""Our table of Triton's flags beside the real binary's own help: the same names, the same kinds of values."""

from __future__ import annotations

import re

import pytest

from bench.worker.peers import triton
from bench.worker.peers.process import environment_python
from isochrone.cli.triton.flags import FLAGS, Value

pytestmark = pytest.mark.peers

_KINDS = {
    "": Value.NONE,
    "<boolean>": Value.BOOLEAN,
    "<integer>": Value.INTEGER,
    "<float>": Value.NUMBER,
    "<string>": Value.TEXT,
}


def test_no_flag_of_the_real_server_is_missing() -> None:
    shown = re.findall(r"^  --([a-z0-9-]+)[ ]*(.*)$", triton.help_text(environment_python("")), re.MULTILINE)
    assert len(shown) == 87
    # Composite values, <<string>,<string>=<string>>, are text to us.
    real = {name: _KINDS.get(kind, Value.TEXT) for name, kind in shown}
    assert {flag.name: flag.value for flag in FLAGS} == real
