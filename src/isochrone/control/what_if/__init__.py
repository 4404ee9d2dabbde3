"""Questions about the present fleet: ``situation`` describes it, ``reading`` makes one of records and measurements,
``answers`` are the records of an answer, and ``asking`` is how the API asks.

The simulator answers (``isochrone.simulate.what_if``). It stands above the control plane, so that the command line
gives it to the API.
"""
