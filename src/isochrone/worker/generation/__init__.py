"""Generation of tokens: continuous batching of decode steps under deadlines per token.

A request comes to ``runner`` on the loop's thread; its prompt becomes tokens on a thread of its own (``prompts``); an
``engine`` then computes it, step by step, on the thread that owns the model, and makes text and responses of the tokens
(``answers``). What each step computes is decided by pure objects (``scheduling``): the scheduler over sequences, the
blocks of the paged cache, admission and the times of steps.
"""
