"""``isochrone doctor``: settings of the kernel and the machine that cost latency, with their measured effect.

``examination`` is the way through: ``reading`` collects facts from /proc, /sys and the GPU driver, ``measuring`` takes
times on this machine, ``checks`` decides (facts and times in, findings out; pure), ``fixing`` writes the values that
are safe to change. A value that cannot be read is ``Unknown`` with the reason, and is never guessed.

A new check is a function in one of the modules of ``checks``, an entry in its ``CHECKS`` and a row in docs/doctor.md.
Nothing here is on the path of a request, and no server imports it.
"""
