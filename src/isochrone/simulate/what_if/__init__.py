"""Answers questions about a fleet ("lose this worker", "double the load", "another policy") by simulating it twice.

``question`` reads questions and applies them to a situation, ``simulation`` runs one situation, ``answering`` compares
the run of today with that of the changed fleet, and ``verdict`` puts the difference into sentences. All of these are
pure; ``child`` runs them in a process of its own, and ``process`` starts it with a deadline.
"""
