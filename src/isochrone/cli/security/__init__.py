"""Commands for certificates, access, signatures and the audit log."""
