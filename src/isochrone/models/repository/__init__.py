"""Model repositories in Triton's layout: which models and versions they hold, and what identifies a version.

``repository`` joins the repositories of a server; ``scanning`` finds the models of one directory, ``describing`` reads
and completes the configuration of one model. ``versions`` applies version policies, ``digest`` names the bytes
of a version, ``overrides`` keeps the files of a load request. Nothing here writes into a repository.
"""
