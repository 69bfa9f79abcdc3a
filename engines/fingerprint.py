"""A fingerprint of a model's weights: two runs whose rows carry the same one computed the same numbers' model."""

import hashlib
from pathlib import Path

_CHUNK = 1 << 24


def fingerprint(model: Path) -> str:
    """Return the first 16 hex digits of a SHA-256 over a model's weights and configuration.

    Args:
        model: a GGUF file, or a folder with `config.json` and safetensors; of a folder the name and content of each of
            these files count, in the order of their names.
    """
    files = [model] if model.is_file() else sorted([*model.glob("*.safetensors"), *model.glob("config.json")])
    digest = hashlib.sha256()
    for file in files:
        if not model.is_file():
            digest.update(file.name.encode())
        with file.open("rb") as content:
            while chunk := content.read(_CHUNK):
                digest.update(chunk)
    return digest.hexdigest()[:16]
