"""The build step of a wheel: where a C compiler is there, the hot modules are compiled.

``ISOCHRONE_COMPILE=1`` compiles or fails, ``ISOCHRONE_COMPILE=0`` leaves all modules interpreted. Without it they are
compiled if a C compiler and Python's headers are there and this Python is one that the compiled build is tested with;
if compiling fails, the wheel is interpreted. An editable install is interpreted.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).resolve().parent / "scripts"))
import compile_hot_modules as hot

_SWITCH = "ISOCHRONE_COMPILE"


class CompiledModules(BuildHookInterface[Any]):
    """Adds the extension modules to a wheel."""

    _out: Path | None = None

    def dependencies(self) -> list[str]:
        return list(hot.REQUIREMENTS) if self._is_wanted() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if not self._is_wanted():
            return
        if version == "editable":
            if os.environ.get(_SWITCH) == "1":
                raise SystemExit(f"{_SWITCH}=1: an editable install cannot be compiled; install without -e")
            return
        self._out = Path(tempfile.mkdtemp(prefix="isochrone-compiled-"))
        self.app.display_info("compiling the hot modules: some minutes")
        try:
            modules = hot.compile_package(Path(self.root) / "src" / "isochrone", self._out)
        except (SystemExit, OSError) as error:
            shutil.rmtree(self._out, ignore_errors=True)
            if os.environ.get(_SWITCH) == "1":
                raise
            self.app.display_warning(f"{error}; the wheel is interpreted")
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["force_include"].update({str(self._out / module): str(module) for module in modules})

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self._out is not None:
            shutil.rmtree(self._out, ignore_errors=True)

    def _is_wanted(self) -> bool:
        switch = os.environ.get(_SWITCH, "")
        if switch not in ("", "0", "1"):
            raise SystemExit(f"{_SWITCH}={switch!r}: expected 1 (compile or fail), 0 (interpreted), or unset")
        return switch == "1" or (not switch and hot.is_tested_with_this_python() and hot.has_compiler())
