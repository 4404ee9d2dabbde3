"""Commands that change model versions: rollouts and canaries, and their display.

They must never decide about a rollout: controllers do.
"""
