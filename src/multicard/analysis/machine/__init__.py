"""How fast a machine is at most, as recorded by `multicard doctor --measure`, and how far runs are from that."""
