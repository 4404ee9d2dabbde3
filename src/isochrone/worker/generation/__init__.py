"""Generation of tokens: continuous batching of decode steps under deadlines per token.

A request comes to ``runner`` on the loop's thread; its prompt becomes tokens on a thread of its own (``prompts``); an
``engine`` then computes it, step by step, on the thread that owns the model. What each step computes is decided by pure
objects: ``scheduler`` over ``sequence``, ``blocks`` (the paged cache), ``admission`` and ``step_times``.
"""
