"""How temporal-inbox is run: here the local stack (`deploy.dev`)."""
