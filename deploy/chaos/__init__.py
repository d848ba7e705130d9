"""`make chaos`: the whole stack under random faults, and the proof that nothing was lost or done twice (docs/faults.md)."""
