"""Model repositories in Triton's layout: which models and versions they hold, and what identifies a version.

``repository`` scans directories and describes models, ``versions`` applies version policies, ``digest`` names the bytes
of a version, ``overrides`` keeps the files of a load request. Nothing here writes into a repository.
"""
