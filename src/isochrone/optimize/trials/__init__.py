"""Trials of candidates: files are changed and run in child processes with limits, as a worker would run them."""
