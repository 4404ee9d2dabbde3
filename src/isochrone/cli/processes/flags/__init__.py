"""Flags that several of the commands beside share, each with how it is read."""
