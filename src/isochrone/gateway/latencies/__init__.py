"""How long requests take, as callers see it: counts for the metrics page, of versions and of agents. All pure.

``durations`` is one histogram. ``version_durations`` has those of a model, by version and outcome. ``frequent_keys``
finds the most frequent keys of a stream in fixed memory, ``ranking`` gives the first of them places, ``agents`` keeps
the latencies of those.
"""
