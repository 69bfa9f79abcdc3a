"""The checks of `recall doctor`, each a generator of findings."""
