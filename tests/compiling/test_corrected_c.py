"""Compiled code whose objects are freed while finalizers look at it. Uncorrected, it crashes or forgets here."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import weakref
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import corrected_c  # noqa: E402

SOURCE = """
from typing import Callable

class Holder:
    def __init__(self) -> None:
        self.value: object = None
        self.pair: tuple[object, int] = (None, 0)

    def put(self, value: object) -> None:
        self.value = value

    def put_pair(self, value: object) -> None:
        self.pair = (value, 1)

def both(first: object, second: object) -> Callable[[], tuple[object, object]]:
    def get() -> tuple[object, object]:
        return first, second

    return get
"""
BUILD = """
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
from corrected_c import corrected
from mypyc.build import mypycify
from setuptools import setup

extensions = mypycify(["freed.py"], opt_level="2", debug_level="0", multi_file=True, group_name="freed", target_dir="c")
for path in Path("c").glob("__native*.c"):
    path.write_text(corrected(path.read_text()))
setup(name="freed", ext_modules=extensions, script_args=["-q", "build_ext", "--inplace"])
"""


@pytest.fixture(scope="module")
def freed(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    folder = tmp_path_factory.mktemp("freed")
    (folder / "freed.py").write_text(SOURCE)
    command = [sys.executable, "-c", BUILD, str(ROOT / "scripts")]
    made = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert made.returncode == 0, made.stdout
    (library,) = folder.glob("freed.*.so")
    sys.path.insert(0, str(folder))  # the module is a stub that imports the library of its group
    try:
        spec = importlib.util.spec_from_file_location("freed", library)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(folder))
    return module


class AtEnd:
    """Calls something when it is freed."""

    def __init__(self, call: Any) -> None:
        self.call = call

    def __del__(self) -> None:
        self.call()


@pytest.mark.long
def test_the_old_value_of_an_attribute_is_not_seen_while_it_is_freed(freed: ModuleType) -> None:
    holder, seen = freed.Holder(), list[object]()
    holder.put([AtEnd(lambda: seen.append(holder.value))])
    holder.put("new")
    holder.value = [AtEnd(lambda: seen.append(holder.value))]
    holder.value = "newer"
    holder.put_pair([AtEnd(lambda: seen.append(holder.pair))])
    holder.put_pair("newest")
    assert seen == ["new", "newer", ("newest", 1)]


@pytest.mark.long
def test_a_closure_that_is_made_while_another_is_freed_keeps_its_variables(freed: ModuleType) -> None:
    made: list[Any] = []
    closure = freed.both(AtEnd(lambda: made.append(freed.both("first", "second"))), "old")
    del closure
    assert [each() for each in made] == [("first", "second")]
    assert freed.both(3, 4)() == (3, 4)
    assert made[0]() == ("first", "second")


@pytest.mark.long
def test_a_long_chain_of_closures_is_freed(freed: ModuleType) -> None:
    chain: Any = None
    for _ in range(300_000):
        chain = freed.both(chain, None)
    del chain
    assert freed.both(1, 2)() == (1, 2)


@pytest.mark.long
@pytest.mark.skipif(sys.version_info >= (3, 12), reason="from Python 3.12 on, mypyc's closures have no weak references")
def test_weak_references_to_a_closure_end_with_it_and_its_attributes_too(freed: ModuleType) -> None:
    ended: list[Any] = []
    closure = freed.both(1, 2)
    closure.mark = True
    reference = weakref.ref(closure, ended.append)
    assert reference() is closure
    del closure
    assert reference() is None
    assert ended == [reference]
    assert not hasattr(freed.both(3, 4), "mark")


@pytest.mark.parametrize("macro", ["CPy_DECREF", "CPy_DECREF_NO_IMM", "CPyTagged_DECREF"])
def test_a_store_frees_last(macro: str) -> None:
    guarded = f"    if (self->_x != NULL) {{\n        {macro}(self->_x);\n    }}\n    self->_x = tmp;\n\n"
    plain = f"    {macro}(((T *)cpy_r_self)->_x.f0);\n    ((T *)cpy_r_self)->_x = cpy_r_r0;\n\n"
    for text in (guarded, plain):
        found = corrected_c.corrected(text)
        assert found.index(" = tmp;" if text is guarded else " = cpy_r_r0;") < found.index(f"{macro}(cpy_old")


def test_a_form_that_is_not_known_is_refused() -> None:
    for free in ("CPy_DECREF", "CPy_XDECREF", "CPy_DecRef", "CPy_DECREF_NO_IMM"):
        with pytest.raises(SystemExit, match="the value of an attribute is freed"):
            corrected_c.corrected(f"    {free}(self->_x);\n    cpy_r_r1 = 1;\n    self->_x = cpy_r_r0;\n")
    with pytest.raises(SystemExit, match=r"line 1: the value of an attribute is freed.*corrected_c\.py"):
        corrected_c.corrected("    CPy_DECREF(self->_x);\n    cpy_r_r1 = 1;\n    self->_x = cpy_r_r0;\n")
    with pytest.raises(SystemExit, match="line 2: memory is offered before it is cleared"):
        corrected_c.corrected("if (f_free_instance == NULL) {\n    f_free_instance = self;\n    Py_CLEAR(self->_x);\n")
    with pytest.raises(SystemExit, match="line 1: a list of weak references is used"):
        corrected_c.corrected(f"x = {corrected_c._WEAK_LIST}T));\n\n")
