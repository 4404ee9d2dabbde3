"""Parallel instances of torch models: one model over several processes of one machine, its ranks.

``settings`` reads what a configuration asks for; ``layout`` says which rank has which part. ``module_source`` builds
the module of ``model.py`` without weights, ``plan`` divides its layers among the ranks of a stage, and ``shards`` reads
each rank's part of ``model.safetensors``. Rank 0 is the process of an isolated model (``isolation``): its
``executable`` starts the others (``group``), whose program is ``rank_main``. ``stage`` runs one rank's part of a batch
and passes tensors on through ``transport``.
"""
