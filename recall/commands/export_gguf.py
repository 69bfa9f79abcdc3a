"""`recall export-gguf`: writes a model's weights for llama.cpp, so that two engines compute the same numbers."""

from pathlib import Path
from typing import Annotated

import typer


def export_gguf(
    output: Annotated[Path, typer.Option("-o", "--output", help="The GGUF file to write.")],
    model: Annotated[str, typer.Option(help="'demo', a local folder or a hub name.")] = "demo",
) -> None:
    """Write a model as a GGUF file in F32, its tokenizer included.

    For Gemma 3 (text), Llama, Mistral, Qwen 2 and Qwen 3; what llama.cpp would compute otherwise is refused. The
    demo model's own GGUF is quantized: between it and another engine lie two questions, this file leaves one.

    Example: recall export-gguf --model demo -o demo-f32.gguf
    """
    from engines import EngineOptions
    from engines.gguf_export import export_gguf as export
    from recall import models
    from recall.errors import RecallError

    if output.exists():
        raise RecallError(f"{output} is there already: remove it, or give another -o")
    if not output.absolute().parent.is_dir():
        raise RecallError(f"{output}: its folder is not there; make it, or give another -o")
    options = EngineOptions(models.resolve(model), models.shown_name(model))
    export(options, output, lambda text: typer.echo(text, err=True))
    typer.echo(f"{output}: {output.stat().st_size:,} bytes", err=True)
