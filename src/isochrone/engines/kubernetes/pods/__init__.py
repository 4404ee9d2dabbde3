"""Runs each process of a fleet as a pod, through the Kubernetes API.

Replaces pods that vanish. Must never decide which processes should run: ``supervision`` does.
"""
