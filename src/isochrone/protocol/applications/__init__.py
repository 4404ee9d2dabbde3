"""What listeners serve: routes of the protocol, pages about the process, and access control in front of them.

``application`` chooses the transport of a request, or is the metrics page alone; ``authenticated`` asks for a grant
first. ``flight_page`` and ``health_page`` are ports, or parts of them, that serve no model.
"""
