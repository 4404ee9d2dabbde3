"""``isochrone doctor``: ``command`` runs an examination and asks for consent, ``report`` prints. Decides nothing."""
