"""What mypyc is given to read: the same lines, marked; and what it would get wrong is refused before it compiles."""

from __future__ import annotations

import ast
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import compile_hot_modules as hot  # noqa: E402
import native_classes as native  # noqa: E402

PACKAGE = ROOT / "src" / "isochrone"
HEAD = "from __future__ import annotations\n\nfrom dataclasses import dataclass\n\n\n"


def test_every_hot_module_keeps_its_lines() -> None:
    modules = hot.hot_modules(PACKAGE)
    classes = native.read_classes(PACKAGE.parent, modules)
    native.refuse_differences(classes)
    inherited = native.inherited_by_interpreted(classes)
    assert len(modules) > 50
    for module in modules:
        text = (PACKAGE.parent / module).read_text()
        marked = native.mark(text, inherited)
        where = {node.name: node.lineno for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)}
        found = {node.name: node.lineno for node in ast.walk(ast.parse(marked)) if isinstance(node, ast.ClassDef)}
        assert (module, found) == (module, where)
        assert marked.count("\n") == text.count("\n")


def test_a_class_with_interpreted_subclasses_is_marked_and_others_are_not() -> None:
    marked = native.mark(HEAD + "class A:\n    pass\n\n\nclass B:\n    pass\n", {"A"})
    assert "@_mypyc_attr(allow_interpreted_subclasses=True)\nclass A:" in marked
    assert "\n\n\nclass B:" in marked


def test_a_dataclass_stays_an_ordinary_class_with_its_annotations_as_text() -> None:
    marked = native.mark(
        HEAD + "@dataclass(frozen=True)\nclass Rules:\n    share: Share = 0.5\n    names: dict[str, 'X']\n", ()
    )
    assert "@_mypyc_attr(native_class=False)\n@dataclass(frozen=True)\nclass Rules:" in marked
    assert "    share: 'Share' = 0.5\n" in marked
    assert "    names: \"dict[str, 'X']\"\n" in marked


def test_a_mark_needs_an_empty_line() -> None:
    with pytest.raises(SystemExit, match="class A: no empty line before it"):
        native.mark("from __future__ import annotations\nx = 1\nclass A:\n    pass\n", {"A"})


NATIVE = """
class Base:
    streaming = False
    kind: ClassVar[int] = 0

    def __init__(self) -> None:
        self.cancelled = self.size = 0

    @property
    def stages(self): ...

class Middle(Base):
    streaming = True
"""
UNSEEN = "Derived overrides it, which compiled code does not see"


@pytest.mark.parametrize(
    ("interpreted", "refused"),
    [
        ("kind = 1", ""),
        ("streaming = True", f"Base.streaming: {UNSEEN}; make it a ClassVar"),
        ("other, size = 1, 2", f"Base.size: {UNSEEN}; make it a ClassVar"),
        ("@property\n    def cancelled(self): ...", f"Base.cancelled: {UNSEEN}; make it a property of Base"),
        ("@property\n    def stages(self): ...", ""),
    ],
)
def test_what_compiled_code_would_not_see_is_refused(tmp_path: Path, interpreted: str, refused: str) -> None:
    (tmp_path / "native.py").write_text(NATIVE)
    (tmp_path / "plain.py").write_text(f"class Derived(native.Middle):\n    {interpreted}\n")
    if refused:
        with pytest.raises(SystemExit) as error:
            native.refuse_differences(native.read_classes(tmp_path, [Path("native.py")]))
        assert refused in str(error.value)
    else:
        native.refuse_differences(native.read_classes(tmp_path, [Path("native.py")]))
        assert native.inherited_by_interpreted(native.read_classes(tmp_path, [Path("native.py")])) == {"Base", "Middle"}


def test_a_property_of_a_compiled_subclass_is_refused_too(tmp_path: Path) -> None:
    (tmp_path / "native.py").write_text(NATIVE + "\n    @property\n    def cancelled(self): ...\n")
    with pytest.raises(SystemExit, match=r"^Base\.cancelled: Middle overrides it"):
        native.refuse_differences(native.read_classes(tmp_path, [Path("native.py")]))


def test_a_slot_without_a_type_is_refused(tmp_path: Path) -> None:
    """Compiled classes have no attribute that their code neither declares nor sets."""
    (tmp_path / "native.py").write_text("class A:\n    __slots__ = ('steps', 'size')\n    size: int\n")
    with pytest.raises(SystemExit, match=r"^A\.steps: a slot that no method sets; declare its type$"):
        native.refuse_differences(native.read_classes(tmp_path, [Path("native.py")]))


def test_the_development_environment_compiles_as_wheels_are_compiled() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    assert set(hot.REQUIREMENTS) <= set(project["optional-dependencies"]["dev"])
