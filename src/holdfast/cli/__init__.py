"""The command line, one module a noun. Prints, and is the only part that does. Never speaks SQL."""
