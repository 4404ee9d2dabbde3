"""Which system calls the process of a model may make: rules, as a filter that the kernel applies.

``rules`` decides by ``numbers``, ``bpf`` writes the filter, ``seccomp`` puts it into force. Only ``seccomp`` touches
anything.
"""
