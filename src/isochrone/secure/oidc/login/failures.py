"""Why there is no token."""

from __future__ import annotations

from isochrone.errors import IsochroneError


class LoginFailed(IsochroneError):
    """A login that gave no usable token; the message says why, and never has a token or a code."""


class Refused(LoginFailed):
    """The provider does not grant it any more: asking again does not help, logging in again may."""
