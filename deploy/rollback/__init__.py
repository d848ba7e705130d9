"""The way back to direct mode and forward again, rehearsed under traffic: see docs/rollback.md."""
