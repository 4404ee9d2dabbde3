"""Child processes of models that are isolated: what all kinds of isolated models need of them.

``child`` starts, watches and ends a process; ``restarts`` decides when the next one may start; ``shared_block``,
``places`` and ``frames`` are the memory and the messages in which tensors pass, ``response_blocks`` the memory of
answers; ``child_side`` is what a child does first; ``forks`` ends the copies of a process that a model forks.
"""
