"""TLS of listeners and of clients: contexts that follow their files, and the TLS by which a process calls its fleet.

``contexts`` makes the context of a listener, ``client_tls`` that of a client with many servers; both read files again
when they change, with what ``certificates`` and ``client_hello`` read from bytes. ``permissive_server`` accepts plain
connections beside encrypted ones. ``process_tls`` holds what this process calls others with; ``fleet_transport`` calls
by it. No module here knows HTTP/1.1 or HTTP/2.
"""
