"""The settings of all of a gateway's decisions: ``gateway_rules`` defines them, ``file`` reads them from a file.

This package imports the decisions that it configures. No decision may import it: each gets its own rules.
"""
