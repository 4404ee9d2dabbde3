"""The catalog of served model versions: load, replace, unload, poll.

``catalog`` changes the versions that requests find; every other module prepares such a change. ``loading`` loads and
warms a version on a thread, ``serving`` gives it a queue and threads, ``load_turns`` orders competing loads, ``drains``
frees replaced versions, ``states`` keeps the index, ``polling`` follows the repository's files. ``dependencies``,
``dependents`` and ``ensemble_records`` keep ensembles consistent with the models of their steps. Nothing here runs a
request.
"""
