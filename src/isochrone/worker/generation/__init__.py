"""Generation of tokens: continuous batching of decode steps under deadlines per token.

A request comes to ``runner`` on the loop's thread, where it gets an engine or is refused (``request_admission``); its
prompt becomes tokens on a thread of its own (``prompts``); the ``engine`` then computes it, step by step, on the thread
that owns the model, and makes text and responses of the tokens (``answers``), which ``jobs_under_way`` sends from the
loop's thread. What each step computes is decided by pure objects (``scheduling``): the scheduler over sequences, the
blocks of the paged cache, admission and the times of steps.
"""
