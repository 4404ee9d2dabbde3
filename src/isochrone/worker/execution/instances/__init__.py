"""Model instances, and one run on them.

An ``instance`` is one executable with its thread, a ``batch`` is one run on it. ``replacement`` has a new instance made
for one whose run does not end, ``resource_gate`` says which idle instances may run under the rate limiter, and
``reshape`` gives the model its own shapes in place of the callers'.
"""
