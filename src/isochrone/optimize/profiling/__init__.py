"""Profiles of a model: configurations are proposed, measured in a process of their own, and one is recommended."""
