"""Writes the result of a search: a version or a model in a repository, and the report of how it was found."""
