"""The record, and all that is neither workflow nor activity."""
