"""What the models of one process share of a GPU, whatever their backend: its memory, its streams and its loss.

``memory_ledger`` counts who holds how much, ``streams`` gives instances streams of their own, ``errors`` names the
errors after which the device is lost. ``failed_frames`` and ``uncollected`` keep Python from holding, or freeing, its
memory at the wrong time.
"""
