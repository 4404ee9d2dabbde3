"""Which files the process of a model reaches: what it may read, and a place for temporary ones.

``paths`` decides, ``landlock`` puts rules into force, ``scratch`` mounts: each makes one kind of system call.
"""
