"""Lets the tests in this folder's rooms import ``toy_model`` and ``toy_runner``."""
