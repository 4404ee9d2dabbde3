"""The leading controller: election, and the loop that reconciles the observed state of a fleet with the desired one.

The decisions are pure and live in ``desired``, ``rollout``, ``evaluation``, ``workers`` and ``recovery``; this package
observes, calls them and writes their results. Every write is conditional on still leading. Must never hold state that
the store does not have.
"""
