"""The command line of tritonserver, as ``isochrone serve`` accepts it.

It only translates flags: nothing here starts or loads anything.
"""
