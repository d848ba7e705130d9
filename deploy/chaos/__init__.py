"""`make chaos`: the whole stack under random faults, and the proof that nothing is lost or doubled (docs/faults.md)."""
