"""`python -m recall` is `recall`."""

from recall.cli import main

main()
