"""Scheduling decisions: which requests run next, together, and on which resources.

``batch_queue`` orders and admits requests, by the batches in ``batch_plan`` and the measured times in
``latency_curve``; ``answer_order`` keeps answers in order; ``rate_limiter`` shares resources between models. These are
pure: ``now`` is an argument. ``alarm`` is the timer that runners set by these decisions. Nothing here executes a model
or imports ``execution``.
"""
