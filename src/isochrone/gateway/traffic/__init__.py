"""Decisions on a request before its worker is chosen. All pure.

``quotas`` limits callers, ``canary`` chooses the version, ``shadow`` decides whether a copy is sent, ``affinity``
computes the key that keeps requests on one worker, ``tiers`` chooses between edge, region and core. ``parameters`` and
``json_ends`` read the request parameters that these need from a JSON body. None of them chooses a worker.
"""
