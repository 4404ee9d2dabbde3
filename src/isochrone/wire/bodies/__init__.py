"""Memory of large bodies: how much of it peers may have, its use for the next body, and receiving into it directly.

``budget`` limits what a process holds for its peers, ``body_pool`` lends blocks and takes them back, and
``direct_receiver`` lets a socket write into them. No module here knows HTTP/1.1 or HTTP/2.
"""
