"""Getting tokens from a provider: for a person with a browser or a device code, and for a service with a secret.

``flows`` asks, over requests and answers that are pure; ``kept_logins`` keeps tokens in a file of the user;
``renewal`` gives the token of a control API, renewed when it is about to expire.
"""
