"""The evaluation of a new version: comparing its outputs, and judging a canary by its failures and latencies.

``evaluator`` reads counts and samples from gateways while a rollout compares or is in canary, and reports a verdict.
``replay`` and ``outputs`` compare answers; ``figures``, ``significance`` and ``judging`` judge a canary. Must never
change a rollout: ``rollout.machine`` does, by the verdict.
"""
