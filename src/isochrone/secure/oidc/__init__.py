"""Tokens of OpenID providers: who a caller is, as the provider states it. ``settings`` → ``keys`` → ``verifier``.

``verifier`` decides about a token with the keys at hand, without I/O; ``keys`` fetches the keys and keeps them fresh.
``login`` is the other side: it gets tokens for the command line and for service accounts.

Nothing of a token is in an error, a log or a metric. Keys come from the provider's own key set, never
from a token.
"""
