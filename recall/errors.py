"""The one exception this package raises for what its user can mend."""


class RecallError(ValueError):
    """One sentence for the user: which file, row or option is wrong, and the mend."""
