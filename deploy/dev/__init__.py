"""The local stack: Postgres, Temporal, ingest, worker, a stand-in hospital and the sample day."""
