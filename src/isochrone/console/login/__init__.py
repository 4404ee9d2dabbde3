"""Logging in to the console, at a provider of the access file or with an API token.

``sessions`` and ``attempts`` keep what belongs to a browser, ``local`` decides about addresses and cookies, all without
I/O; ``providers`` asks the provider; ``gate`` stands before everything the controller serves and puts the session's
credential in place of the cookie; ``routes`` and ``page`` are what people see. Credentials never reach a browser.
"""
