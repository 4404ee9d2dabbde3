"""Lets the tests in this folder's rooms import ``scenarios`` and ``answering``."""
