"""Autoscaling algorithms on simulated pools: ours beside those of others, on the same loads."""
