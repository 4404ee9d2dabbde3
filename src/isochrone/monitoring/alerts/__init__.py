"""The alerts by what they are about: SLOs, load and machines, the fleet's processes, versions of models.

``catalog`` lists all of them. Each has a runbook in docs/runbooks.
"""
