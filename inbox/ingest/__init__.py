"""How messages come in: doors, and accept behind them."""
