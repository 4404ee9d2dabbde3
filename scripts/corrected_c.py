"""Corrects the C code that mypyc writes where it frees objects in an order that is not safe. Text in, text out.

Freeing an object may run any code: a finalizer, or another thread where the finalizer lets one run. mypyc 2.4.1 does it
in three places before its own work is complete:

- An attribute is replaced: the old value is freed while the attribute still names it. Whoever reads the attribute
  meanwhile gets an object that is gone. Here, the attribute has its new value first.
- The memory of a closure or coroutine is kept for the next one, and offered to it before it is cleared. The next one
  then loses variables that were set meanwhile. Here, it is offered last. Those of its type that are freed meanwhile
  are not kept: a long chain of them is freed without deep recursion.
- The list of weak references to a closure is treated as an object that the closure owns: the garbage collector counts a
  reference that does not exist, and freeing the closure frees it. Here, weak references are cleared as those of other
  objects are; so is the dictionary of a closure whose memory is kept.
"""

from __future__ import annotations

import re
from itertools import pairwise

#: ``self->_x`` or ``((T *)object)->_x``: an attribute in a native object.
_ATTRIBUTE = r"(?:self|\(\(\w+ \*\)\w+\))->\w+"
#: From Python 3.12 on, objects that are never immortal have a macro of their own.
_DECREF = r"CPy(?:Tagged)?_DECREF(?:_NO_IMM)?\("
_FREED = rf"[ ]*{_DECREF}(?P={{name}})(?:\.\w+)*\);\n"
#: The old value is freed, if there is one, and then replaced.
_GUARDED_STORE = re.compile(
    rf"^[ ]*if \((?P<guarded>{_ATTRIBUTE})(?P<test>[^\n]*)\) \{{\n"
    rf"(?P<frees>(?:{_FREED.format(name='guarded')})+)"
    r"[ ]*\}\n"
    r"(?P<store>[ ]*(?P=guarded) = [^\n]*;\n)",
    re.MULTILINE,
)
_STORE = re.compile(
    rf"^(?P<frees>[ ]*{_DECREF}(?P<attribute>{_ATTRIBUTE})(?:\.\w+)*\);\n"
    rf"(?:{_FREED.format(name='attribute')})*)"
    r"(?P<store>[ ]*(?P=attribute) = [^\n]*;\n)",
    re.MULTILINE,
)
#: Whatever macro or function frees the value of an attribute.
_ANY_FREED = re.compile(rf"\w*(?:DECREF|DecRef)\w*\({_ATTRIBUTE}")
_KEPT = re.compile(
    r"^    if \((?P<kept>\w+_free_instance) == NULL\) \{\n"
    r"        (?P=kept) = self;\n"
    r"(?P<clears>(?:        [^\n]*\n)*?)"
    r"        return;\n"
    r"    \}\n",
    re.MULTILINE,
)
_DEALLOC = re.compile(
    r"^static void\n\w+_dealloc\((?P<type>\w+) \*self\)\n\{\n(?P<body>.*?)^\}\n", re.MULTILINE | re.DOTALL
)
_TRAVERSE = re.compile(
    r"^\w+_traverse\((?P<type>\w+) \*self, visitproc visit, void \*arg\)\n\{\n(?P<body>.*?)^\}\n",
    re.MULTILINE | re.DOTALL,
)
#: The list lies behind the object and its dictionary.
_WEAK_LIST = "*((PyObject **)((char *)self + sizeof(PyObject *) + sizeof("
_WEAK_LIST_LINE = re.compile(rf"^[ ]*Py_(?:VISIT|CLEAR)\({re.escape(_WEAK_LIST)}\w+\)\)\)\);\n", re.MULTILINE)
_CLEAR_WEAK_LIST = """\
    if (Py_TYPE(self)->tp_weaklistoffset > 0) {
        PyObject_ClearWeakRefs((PyObject *)self);
    }
"""
_UNTRACKED = "    PyObject_GC_UnTrack(self);\n"
_VISIT_MANAGED_DICT = "PyObject_VisitManagedDict("


def corrected(text: str) -> str:
    """Raises SystemExit if the text has one of the three forms in another shape than the one that is known."""
    text = _GUARDED_STORE.sub(_guarded_store, text)
    text = _STORE.sub(_store, text)
    visits = {found["type"]: found["body"] for found in _TRAVERSE.finditer(text)}
    weak = {owner for owner, body in visits.items() if _WEAK_LIST in body}
    managed = {owner for owner, body in visits.items() if _VISIT_MANAGED_DICT in body}
    text = _WEAK_LIST_LINE.sub("", text)
    text = _DEALLOC.sub(lambda found: _dealloc(found, weak, managed), text)
    _check(text, weak)
    return text


def _guarded_store(found: re.Match[str]) -> str:
    attribute = found["guarded"]
    frees = found["frees"].replace(f"({attribute}", "(cpy_old")
    test = f"    if (cpy_old{found['test']}) {{\n{frees}    }}\n"
    return f"    {{\n    __typeof__({attribute}) cpy_old = {attribute};\n{found['store']}{test}    }}\n"


def _store(found: re.Match[str]) -> str:
    attribute = found["attribute"]
    frees = found["frees"].replace(f"({attribute}", "(cpy_old")
    return f"    {{\n    __typeof__({attribute}) cpy_old = {attribute};\n{found['store']}{frees}    }}\n"


def _dealloc(found: re.Match[str], weak: set[str], managed: set[str]) -> str:
    owner, text, clear_dict = found["type"], found[0], ""
    if owner in weak:
        text = text.replace(_UNTRACKED, _UNTRACKED + _CLEAR_WEAK_LIST, 1)
        clear_dict = f"        Py_CLEAR(*((PyObject **)((char *)self + sizeof({owner}))));\n"
    elif owner in managed:
        clear_dict = "        PyObject_ClearManagedDict((PyObject *)self);\n"

    def kept(memory: re.Match[str]) -> str:
        slot = memory["kept"]
        clears = f"        is_clearing = 1;\n{memory['clears']}{clear_dict}        is_clearing = 0;\n"
        offer = f"        if ({slot} == NULL) {{\n            {slot} = self;\n            return;\n        }}\n"
        return f"    static char is_clearing;\n    if ({slot} == NULL && !is_clearing) {{\n{clears}{offer}    }}\n"

    return _KEPT.sub(kept, text)


def _check(text: str, weak: set[str]) -> None:
    lines = [line.strip() for line in text.splitlines()]
    for number, (line, following) in enumerate(pairwise(lines), 1):
        if "_free_instance = self;" in line and following != "return;":
            raise _unknown(number, "memory is offered before it is cleared")
        if _ANY_FREED.match(line):
            raise _unknown(number, "the value of an attribute is freed")
        if _WEAK_LIST in line:
            raise _unknown(number, "a list of weak references is used")
    if text.count(_CLEAR_WEAK_LIST) != len(weak):
        raise _unknown(0, "a class that has weak references does not free its objects in the known way")


def _unknown(line: int, what: str) -> SystemExit:
    return SystemExit(f"C code of mypyc, line {line}: {what}, in a form that scripts/corrected_c.py does not know")
