"""The models of the GPU benches.

``specs`` is what their callers see, without torch; ``networks`` are their layers; ``repository`` writes them for a
worker.
"""
