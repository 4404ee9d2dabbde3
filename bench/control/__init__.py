"""The proof of the control plane: fleets under load and faults, every answer recorded, every history checked."""
