"""Puts this folder on the import path: tests in its sub-folders share its helper modules."""
