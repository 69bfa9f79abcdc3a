"""The one exception this package raises for what its caller can mend."""


class EngineError(ValueError):
    """One sentence for the user: what the engine cannot do with this model, prompt or option, and the mend."""
