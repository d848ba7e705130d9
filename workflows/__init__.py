"""Deterministic code only, light to import."""
