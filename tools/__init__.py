"""What the Makefile runs before the course or its tests: set up .venv, find a browser."""
