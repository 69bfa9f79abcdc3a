"""One file a command: its options, their help, and what it does. Heavy imports stay inside the functions."""
