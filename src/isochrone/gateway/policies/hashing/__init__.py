"""Policies that send equal keys to the same worker: ``consistent_hash`` and ``maglev``, and the hashes they use.

Every gateway must compute the same placement from the same workers: a hash must not depend on the process.
"""
