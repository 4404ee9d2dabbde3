"""Fuzzing of everything that reads bytes or text of strangers: ``make fuzz``, docs/fuzzing.md.

``targets`` has one small function per parser, which raises where the parser breaks what it promises. ``tests/fuzzing``
runs them over the corpus and over plain mutations of it. ``guided`` runs the same targets under atheris, which looks
for inputs that reach new code.
"""
