"""The store for fleets on many machines: etcd 3.4 or newer, over its JSON API.

Translates calls, fails over between members and keeps leases alive. Must never cache: etcd is the only truth.
"""
