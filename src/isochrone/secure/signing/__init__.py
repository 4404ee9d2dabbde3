"""Signatures of model versions in OpenSSF's format: a Sigstore bundle over a list of files with their SHA-256.

``trust`` decides whose signatures count, ``signer`` makes them, ``bundles`` is the only module that touches the library
``model_signing``. Nothing here knows where a version's files are: ``models.repository.signed`` does. Keys and
certificates are files; no service is asked.
"""
