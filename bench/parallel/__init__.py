"""Parallel instances on a CPU: what ranks cost and gain, and how long an instance takes to come back."""
