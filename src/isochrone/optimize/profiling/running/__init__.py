"""Runs of a model under a configuration, in a process of their own, and their times."""
