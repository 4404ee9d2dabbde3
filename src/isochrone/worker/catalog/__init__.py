"""The catalog of served model versions: load, replace, unload, poll.

``catalog`` changes what requests find; everything else prepares a change. ``loading`` reads and warms a version on a
thread, ``load_turns`` orders competing loads, ``dependencies``, ``dependents`` and ``standing`` keep ensembles
consistent with the models of their steps. Nothing here runs a request.
"""
