"""What mypyc has to be told of classes, and what it would get wrong. Pure: source text in, source text or errors out.

mypyc's classes are not Python's in three ways that matter here. ``mark`` changes the copy that mypyc reads accordingly,
line for line, so that tracebacks name the lines of the source:

- Interpreted code may inherit from a compiled class only where the class allows it. Those that have an interpreted
  subclass in the package are marked.
- A dataclass loses the annotations that the settings are read by: dataclasses stay ordinary classes.
- Annotations of records are evaluated at import, although they may name what only type checkers import: they get
  quotes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

_MARK_INHERITED = "@_mypyc_attr(allow_interpreted_subclasses=True)"
_MARK_ORDINARY = "@_mypyc_attr(native_class=False)"
_IMPORT = "; from mypy_extensions import mypyc_attr as _mypyc_attr"
_FUTURE = "from __future__ import annotations"
_RECORDS = frozenset({"NamedTuple", "Protocol", "TypedDict"})


def mark(text: str, inherited: Iterable[str]) -> str:
    """The source as mypyc has to read it: the same lines, classes marked, annotations of records in quotes."""
    lines = [line.encode() for line in text.split("\n")]
    inherited = frozenset(inherited)
    marks = False
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.ClassDef):
            continue
        is_dataclass = any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)
        if is_dataclass or _RECORDS & {base.id for base in node.bases if isinstance(base, ast.Name)}:
            _quote_annotations(node, lines)
        if is_dataclass or node.name in inherited:
            before = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]) - 2
            if lines[before].strip():
                raise SystemExit(f"class {node.name}: no empty line before it that the mark could take")
            lines[before] = b" " * node.col_offset + (_MARK_ORDINARY if is_dataclass else _MARK_INHERITED).encode()
            marks = True
    marked = b"\n".join(lines).decode()
    return marked.replace(_FUTURE, _FUTURE + _IMPORT, 1) if marks else marked


def _quote_annotations(node: ast.ClassDef, lines: list[bytes]) -> None:
    for field in node.body:
        if not isinstance(field, ast.AnnAssign) or isinstance(field.annotation, ast.Constant):
            continue
        annotation = field.annotation
        if "ClassVar" in ast.unparse(annotation) or annotation.lineno != annotation.end_lineno:
            continue
        line, start, end = lines[annotation.lineno - 1], annotation.col_offset, annotation.end_col_offset
        quoted = repr(line[start:end].decode()).encode()
        lines[annotation.lineno - 1] = line[:start] + quoted + line[end:]


class _Class(NamedTuple):
    bases: set[str]
    #: Names with a slot in compiled code: assigned or declared in its body, or set on ``self``.
    attributes: set[str]
    class_variables: set[str]
    #: Names that its body assigns or defines: methods and properties too.
    defined: set[str]
    methods: set[str]
    slots: set[str]


def _classes(paths: Iterable[Path]) -> dict[str, _Class]:
    """Of those modules, by name; two of one name count as one."""
    found: dict[str, _Class] = {}
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                known = found.setdefault(node.name, _Class(set(), set(), set(), set(), set(), set()))
                known.bases.update(name for base in node.bases if (name := _last_name(base)))
                for statement in node.body:
                    _read_statement(statement, known)
    return found


def _read_statement(statement: ast.stmt, known: _Class) -> None:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        known.methods.add(statement.name)
        known.defined.add(statement.name)
        for node in ast.walk(statement):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _last_name(node.value) == "self":
                known.attributes.add(node.attr)
        return
    if not isinstance(statement, ast.Assign | ast.AnnAssign):
        return
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    names = {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}
    if "__slots__" in names and statement.value is not None:
        constants = (node.value for node in ast.walk(statement.value) if isinstance(node, ast.Constant))
        known.slots.update(value for value in constants if isinstance(value, str) and not value.startswith("__"))
        return
    if isinstance(statement, ast.AnnAssign) and "ClassVar" in ast.unparse(statement.annotation):
        known.class_variables.update(names)
        known.defined.update(names)
        return
    known.attributes.update(names)
    if statement.value is not None:
        known.defined.update(names)


class Classes(NamedTuple):
    """Those of a folder, by name."""

    native: dict[str, _Class]
    interpreted: dict[str, _Class]


def read_classes(folder: Path, modules: Sequence[Path]) -> Classes:
    """``modules`` are the compiled ones."""
    compiled = {folder / module for module in modules}
    return Classes(_classes(compiled), _classes(set(folder.rglob("*.py")) - compiled))


def inherited_by_interpreted(classes: Classes) -> set[str]:
    """Classes of the compiled modules from which one of an interpreted module inherits, and their own bases."""
    native, interpreted = classes
    return {base for subclass in interpreted.values() for base in _ancestors(subclass, native, interpreted)}


def refuse_differences(classes: Classes) -> None:
    """Raise ``SystemExit`` for what compiled code would do differently.

    A compiled class has the attributes that it declares or sets, whatever its ``__slots__``. Compiled code reads an
    attribute from its slot. It would not see another value that the body of an interpreted subclass gives it (such an
    attribute has to be a ClassVar), nor the property of a subclass (it has to be one of the base).
    """
    native, interpreted = classes
    faults: set[str] = set()
    for name, subclass in native.items():
        ancestors = _ancestors(subclass, native, interpreted)
        declared = {attribute for base in ancestors | {name} for attribute in native[base].attributes}
        faults |= {f"{name}.{slot}: a slot that no method sets; declare its type" for slot in subclass.slots - declared}
    for name, subclass, overriding in [
        *((name, each, each.methods) for name, each in native.items()),
        *((name, each, each.defined) for name, each in interpreted.items()),
    ]:
        for base in _ancestors(subclass, native, interpreted) - {name}:
            slots = native[base].attributes - native[base].class_variables - native[base].methods
            faults |= {
                f"{base}.{attribute}: {name} overrides it, which compiled code does not see; "
                f"make it a {'property of ' + base if attribute in subclass.methods else 'ClassVar'}"
                for attribute in slots & overriding
            }
    if faults:
        raise SystemExit("\n".join(sorted(faults)))


def _ancestors(subclass: _Class, native: dict[str, _Class], interpreted: dict[str, _Class]) -> set[str]:
    """The compiled ones, but for Protocols."""
    todo, seen = list(subclass.bases), set[str]()
    while todo:
        base = todo.pop()
        if base not in seen:
            seen.add(base)
            for classes in (native, interpreted):
                if base in classes:
                    todo.extend(classes[base].bases)
    return {base for base in seen if base in native and "Protocol" not in native[base].bases}


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
