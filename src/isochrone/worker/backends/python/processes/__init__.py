"""Child processes of models that are isolated: what both kinds of Python models need of them.

``child`` starts, watches and ends a process; ``restarts`` decides when the next one may start; ``shared_block`` and
``places`` are the memory in which tensors pass; ``child_side`` is what a child does first.
"""
