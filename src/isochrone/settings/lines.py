"""YAML with the line of every key. Pure.

Duplicate keys are errors, as are anchors that contain themselves, aliases that expand to too many values, and numbers
of more digits than any setting has. Dates stay text: a version or a name that looks like a date is meant as text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

_MERGE = "tag:yaml.org,2002:merge"
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_TIMESTAMP = "tag:yaml.org,2002:timestamp"
#: Most keys and values of a file, aliases expanded. A fleet of a thousand models has 20,000; nine nested aliases make
#: a billion.
_MOST_VALUES = 500_000
#: Most characters of a number. PyYAML reads 1:59:59 as a number of base 60, in time that grows with the square of its
#: length: half a minute for 800,000 characters.
_MOST_OF_A_NUMBER = 1000


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = {  # noqa: RUF012 (of the base class)
        first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


class Lines:
    """The lines of a text's keys."""

    def __init__(self, root: yaml.Node | None) -> None:
        self._root = root

    def of(self, path: Sequence[str | int]) -> int:
        """The line of a key, or of the innermost part of its path that exists; the first line is 1."""
        node = self._root
        line = 1 if node is None else node.start_mark.line + 1
        for step in path:
            found: tuple[int, yaml.Node] | None = None
            if isinstance(node, yaml.MappingNode):
                for key, value in node.value:
                    if isinstance(key, yaml.ScalarNode) and key.value == str(step):
                        found = (key.start_mark.line + 1, value)
            elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
                found = (node.value[step].start_mark.line + 1, node.value[step])
            if found is None:
                return line
            line, node = found
        return line


def parse_yaml(text: str) -> tuple[Any, Lines]:
    """The data of a text, and its lines. Raises ``yaml.YAMLError``, with a mark if the error has a place."""
    loader = _Loader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return None, Lines(None)
        _check(root, [], {})
        lines = Lines(root)
        # Constructing flattens merges in place, so that ``Lines`` finds merged keys, too.
        return _constructed(loader, root), lines
    except RecursionError:
        raise yaml.constructor.ConstructorError(None, None, "it is nested too deeply", None) from None
    finally:
        loader.dispose()


def is_text(value: str) -> bool:
    """Whether it can be encoded: an escape may say half of a surrogate pair."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _constructed(loader: _Loader, root: yaml.Node) -> Any:
    try:
        return loader.construct_document(root)
    except (ArithmeticError, AttributeError, LookupError, ValueError) as error:
        # Of a tag that its text does not fit, as in !!int "": PyYAML then fails in any of these ways.
        raise yaml.constructor.ConstructorError(None, None, f"a value that is not of its tag: {error}", None) from None


def _check(node: yaml.Node, above: list[yaml.Node], sizes: dict[int, int]) -> int:
    """Check for duplicate keys, recursive anchors and too many values; return the number of values."""
    if any(node is one for one in above):
        raise yaml.constructor.ConstructorError(None, None, "an anchor that holds itself", node.start_mark)
    if isinstance(node, yaml.ScalarNode):
        if node.tag in _NUMBERS and len(node.value) > _MOST_OF_A_NUMBER:
            problem = f"a number of more than {_MOST_OF_A_NUMBER} characters; quote it if it is text"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        if not is_text(node.value):
            raise yaml.constructor.ConstructorError(None, None, "half of a surrogate pair", node.start_mark)
        return 1
    if id(node) in sizes:
        return sizes[id(node)]
    above.append(node)
    size = 1
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key.value!r} for a second time", key.start_mark
                    )
                seen.add(key.value)
            _check(key, above, sizes)
            size += 1 + _check(value, above, sizes)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            size += _check(item, above, sizes)
    above.pop()
    if size > _MOST_VALUES:
        raise yaml.constructor.ConstructorError(
            None, None, f"more than {_MOST_VALUES} values, with all that its aliases repeat", node.start_mark
        )
    sizes[id(node)] = size
    return size
