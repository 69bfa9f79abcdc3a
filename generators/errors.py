"""The one exception this package raises for what its caller can mend."""


class GeneratorError(ValueError):
    """One sentence for the user: what is wrong with the arguments, the tokenizer or the file, and the mend."""
