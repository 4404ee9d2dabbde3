"""What users ask of a fleet, decided: the records and a request in, a transaction or an error out. Pure.

The API and ``isochrone up`` write the transactions; the leader and the supervisor act on what is written. Must never
read a clock, the disk or the network.
"""
