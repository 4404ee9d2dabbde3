"""Commands for files on disk: check a fleet.yaml or a model repository, and write a first fleet.yaml.

They must never contact a fleet or load a model.
"""
