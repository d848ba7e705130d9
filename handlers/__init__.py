"""What is done with messages: one package a domain."""
