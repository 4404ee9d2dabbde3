"""Imports ``model.py`` of a model version and the modules beside it, isolated from other versions.

Two versions of a model each have a ``model.py`` and perhaps a ``features.py``: under plain names, the second version
would get the modules of the first. So the directory of a version becomes a package with a unique name, and its modules
get an ``import`` that searches this package first: ``import features`` in version 2 finds version 2's file, at any time
and in any thread. ``sys.path`` is never changed, and ``remove`` leaves nothing in ``sys.modules``.

Backends use it while a model loads and closes, never per request.
"""

from __future__ import annotations

import builtins
import importlib
import itertools
import re
import sys
import threading
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

_serials = itertools.count(1)
#: Models load on several threads, and concurrent calls of invalidate_caches raise KeyError.
_listings = threading.Lock()


class _PackageFinder(MetaPathFinder):
    """Finds the modules of all versions, by the name of their package.

    It stays in ``sys.meta_path``: an import goes through that list by position, and an entry that another thread
    removes would make it skip the next finder.
    """

    def __init__(self) -> None:
        self.packages: dict[str, VersionModules] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, rest = fullname.partition(".")
        modules = self.packages.get(package) if rest else None
        return modules.find_spec(fullname, path, target) if modules is not None else None


_finder = _PackageFinder()
sys.meta_path.insert(0, _finder)


class VersionModules:
    """The package of one version's directory."""

    def __init__(
        self, model_name: str, model_version: str, directory: Path, given: Mapping[str, ModuleType] | None = None
    ) -> None:
        """``given``: modules that only this version can import, by name."""
        self.directory = directory
        self._given = given or {}
        self._sources: list[bytes] = []
        readable = re.sub(r"\W", "_", f"{model_name}_{model_version}")
        # The serial distinguishes instances, reloads, and names that differ only in replaced characters.
        self.package = f"isochrone_model_{readable}_{next(_serials)}"
        self._builtins = {**vars(builtins), "__import__": self._import}
        package = ModuleType(self.package)
        package.__path__ = [str(directory)]
        package.__spec__ = ModuleSpec(self.package, None, is_package=True)
        package.__spec__.submodule_search_locations = package.__path__
        sys.modules[self.package] = package
        _finder.packages[self.package] = self

    def import_module(self, name: str) -> ModuleType:
        with _listings:
            importlib.invalidate_caches()  # the files may be newer than the finder's listing of the directory
        return importlib.import_module(f"{self.package}.{name}")

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _VersionLoader(spec.loader.name, spec.loader.path, self._builtins, self._sources)
        return spec

    def _import(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        """The ``import`` of the version's modules."""
        if not level and name in self._given:
            return self._given[name]
        top = name.partition(".")[0]
        if level or not self._holds(top):
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        module = importlib.import_module(f"{self.package}.{name}")
        if not fromlist:
            return sys.modules[f"{self.package}.{top}"]
        return builtins.__import__(module.__name__, globals, locals, fromlist, 0)

    def _holds(self, name: str) -> bool:
        directory = self.directory / name
        return directory.with_name(f"{name}.py").is_file() or (directory / "__init__.py").is_file()

    def mentions(self, text: bytes) -> bool:
        """Whether the source of a module that was imported has this text."""
        return any(text in source for source in self._sources)

    def remove(self) -> None:
        """Removes every module of the version and frees its objects."""
        del _finder.packages[self.package]
        # A copy of the names: other threads import and remove modules meanwhile.
        names = [name for name in list(sys.modules) if name == self.package or name.startswith(f"{self.package}.")]
        for name in names:
            module = sys.modules.pop(name)
            # A module and its functions refer to each other: without this, weights in its globals would stay until the
            # next full collection.
            vars(module).clear()


class _VersionLoader(SourceFileLoader):
    """Compiles from source each time.

    A ``__pycache__`` would change the watched repository, and Python considers a cached file current if an edit kept
    the size and the second.
    """

    def __init__(self, fullname: str, path: str, module_builtins: dict[str, Any], sources: list[bytes]) -> None:
        super().__init__(fullname, path)
        self._builtins = module_builtins
        self._sources = sources

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        source = self.get_data(path)
        self._sources.append(source)
        return self.source_to_code(source, path)

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__builtins__"] = self._builtins
        super().exec_module(module)
