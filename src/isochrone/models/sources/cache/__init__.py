"""Fetched files of one machine, shared by its processes.

``cache`` is the entry: it fetches a file once (``download``), and puts the files of a model into a directory (a tree)
that stays as long as a process holds its lock. ``blobs`` checks what was kept. ``space`` evicts, ``sweep``
removes leftovers. ``ranges``, ``eviction`` and ``ownership`` decide, ``locks`` wraps flock(2).

    blobs/ab/abcd…         a file by its SHA-256; read-only
    objects/KEY            the SHA-256 of one state of one object
    listings/KEY           the files of a model as they were listed last
    downloads/KEY.part     an unfinished file; .journal: its finished ranges; .lock: held by the process that fetches it
    trees/KEY/             hard links to blobs under a model's names
    trees/KEY.lock         locked while the tree is in use; its time is that of the last use
    trees/building-…/      a tree in the making, or one that is being removed
    lock                   held while any of these appears or vanishes
"""
