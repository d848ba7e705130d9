"""``python -m inbox``."""

from inbox.cli import main

main()
