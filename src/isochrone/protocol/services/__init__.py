"""The interface that both transports call, ``service.InferenceService``, and services that stand in front of another.

``guarded_service`` passes on what a grant covers, ``forwarded_headers`` adds request parameters. ``deferred_answers``
is for routes: a service may have its answer now, or later.
"""
