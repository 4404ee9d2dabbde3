"""Words of messages: plurals."""

from __future__ import annotations

import pytest

from isochrone.suggestions import plural, suggestion


@pytest.mark.parametrize(
    ("one", "many"),
    [
        ("key", "keys"),
        ("policy", "policies"),
        ("process", "processes"),
        ("model", "models"),
        ("worker or gateway", "workers or gateways"),
    ],
)
def test_plurals(one: str, many: str) -> None:
    assert plural(one) == many


def test_a_list_of_policies_is_called_so() -> None:
    assert suggestion("zebra", ["prequal", "random"], "policy") == "one of the known policies prequal, random"
