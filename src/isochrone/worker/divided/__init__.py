"""Divided models: each request runs in one of several divisions of the work between this machine and another one.

``runner`` hands a request to the model of a division and holds that version until the request ends. ``watching`` looks
at the link and at measured times a few times a second; ``estimates`` and ``replanning`` decide, without I/O, which
division serves requests that name none. ``settings`` are those of the model's config.pbtxt.
"""
