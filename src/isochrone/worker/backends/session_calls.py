"""Runs of a session, without what onnxruntime's public methods do in Python at each call.

They check their arguments, which the worker has done, and a run without options makes new ones. In µs, for three layers
of 64 to 128 and one row, on a Neoverse N1:

                            public    here
    run                       18.5    13.9
    run_with_iobinding        11.9     9.1

The methods below the public ones are not documented, so a release without them gets the public ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import onnxruntime

#: Names of outputs, inputs by name → the outputs in that order.
Run = Callable[[Sequence[str], dict[str, Any]], list[Any]]


def plain_run(session: Any) -> Run:
    """``session.run``. Only for sessions on the CPU: a device that captures graphs relies on the checks."""
    inner = getattr(getattr(session, "_sess", None), "run", None)
    if inner is None:
        return session.run  # type: ignore[no-any-return]
    options = onnxruntime.RunOptions()
    return lambda names, inputs: inner(names, inputs, options)


def bound_run(session: Any, binding: Any) -> Callable[[], None]:
    """``session.run_with_iobinding(binding)``. Only for sessions on the CPU."""
    inner = getattr(getattr(session, "_sess", None), "run_with_iobinding", None)
    inner_binding = getattr(binding, "_iobinding", None)
    if inner is None or inner_binding is None:
        return partial(session.run_with_iobinding, binding)
    return partial(inner, inner_binding, onnxruntime.RunOptions())
