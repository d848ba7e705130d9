"""What workflows have done for them: thin, they call inbox and handlers."""
