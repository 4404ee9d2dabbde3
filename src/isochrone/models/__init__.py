"""From a model repository on disk to a validated description of a model version.

Read in this order: ``repository`` finds a model, ``versions`` says which of its versions are served,
``config`` reads its config.pbtxt, ``completion`` fills in what the file left out, ``validation`` refuses what
cannot be served, ``signature`` is what requests are checked against, ``digest`` names the result. No event
loop, no socket and no backend is imported here.
"""
