"""Models that are imported at once, as a worker does that loads several: one import must not break another's."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from isochrone.worker.backends.version_modules import VersionModules


def test_imports_on_several_threads_do_not_disturb_each_other(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("VALUE = 7\n")
    problems: list[BaseException] = []

    def load(number: int) -> None:
        for turn in range(100):
            # Missing directories, which importlib removes from its cache when it invalidates its listings.
            sys.path_importer_cache.update(dict.fromkeys(f"/nowhere/{place}.zip" for place in range(5)))
            modules = VersionModules(f"m{number}", str(turn), tmp_path)
            try:
                assert modules.import_module("model").VALUE == 7
            except BaseException as problem:
                problems.append(problem)
            finally:
                modules.remove()

    before = sys.getswitchinterval()
    # Threads take turns as often as they can.
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=load, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
        for place in range(5):
            sys.path_importer_cache.pop(f"/nowhere/{place}.zip", None)
    assert problems == []
