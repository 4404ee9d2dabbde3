"""The endpoints of a gateway and the models they serve: versions, replica sets, commitments, sequences. No requests."""
