"""A model that is given as an object of this process, instead of a ``model.py``.

``isochrone.in_process`` makes such objects from functions and classes. Calls, checks of results and errors are those of
``model``; nothing is imported, and nothing is removed.
"""

from __future__ import annotations

import inspect
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from isochrone.worker.backends.processes import forks
from isochrone.worker.backends.python.model import ModelContext, UserModel
from isochrone.worker.backends.python.results import ResultCheck

#: Directories whose code is not the user's.
_LIBRARIES = tuple({sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib")})
_OWN = str(Path(__file__).parents[3])


class GivenModel(UserModel):
    """One instance. ``make`` returns the loaded object; its ``infer`` was checked by the caller."""

    def __init__(self, context: ModelContext, make: Callable[[ModelContext], Any], outputs: dict[str, str]) -> None:
        self._directory = context.directory
        self._label = f"model '{context.model_name}'"
        self.generation = forks.generation
        self.check = ResultCheck(outputs).check
        try:
            self._model = make(context)
            forks.end_if_copy(self.generation)
        except BaseException as error:
            raise self.failure("load", error) from error
        self.infer = self._model.infer
        self.is_async = inspect.isasyncgenfunction(self.infer)
        self._takes_parameters = len(inspect.signature(self.infer).parameters) > 1

    def close(self) -> None:
        self._close_model()

    def _line(self, error: BaseException) -> str:
        """The innermost line outside libraries; "" if there is none."""
        for frame in reversed(traceback.extract_tb(error.__traceback__)):
            if not frame.filename.startswith((_OWN, *_LIBRARIES)):
                # A notebook's cell is compiled under a temporary name.
                file = "cell, line " if "ipykernel_" in frame.filename else f"{Path(frame.filename).name}:"
                return f" ({file}{frame.lineno})"
        return ""
