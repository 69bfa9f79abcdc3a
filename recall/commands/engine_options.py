"""The options that say which engine answers: one list of them for every command that opens an engine."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from engines import Engine, EngineOptions


class NumberFormat(StrEnum):
    """What weights and cache are computed in."""

    FP32 = "fp32"
    BF16 = "bf16"


class Mode(StrEnum):
    """How the ring engine runs its two programs."""

    EAGER = "eager"
    COMPILE = "compile"
    FUSE = "fuse"


class Api(StrEnum):
    """Which of a server's ways to complete a prompt is used."""

    COMPLETIONS = "completions"
    CHAT = "chat"
    LLAMA = "llama"


class KVType(StrEnum):
    """The number format of llama.cpp's KV cache."""

    F32 = "f32"
    F16 = "f16"
    Q8_0 = "q8_0"


MaxNew = Annotated[
    int | None,
    typer.Option(
        help="Most tokens of an answer.",
        show_default="the set's room for the answer, or 64",
        min=1,
        max=100_000_000,
    ),
]
_SERVER = "Of 'server'"
_LLAMA_CPP = "Of 'llama.cpp'"


@dataclass(frozen=True)
class EngineArguments:
    """An engine as it was given on the command line."""

    engine: Annotated[
        str,
        typer.Option(
            help="'ring': fixed 256-token pieces, ring cache. 'hf': transformers' generate. 'llama.cpp': in a process "
            "of its own. 'server': any OpenAI-compatible one. 'recorded': answers of a results file. 'oracle', "
            "'first-record': no model, for checks."
        ),
    ]
    model: Annotated[
        str,
        typer.Option(
            help="'demo', a local folder or a hub name; for 'llama.cpp' 'demo' or a GGUF file; for 'server' the name "
            "that it knows the model by; for 'recorded' a results file or published run."
        ),
    ] = "demo"
    dtype: Annotated[NumberFormat, typer.Option(help="Of weights and cache.")] = NumberFormat.FP32
    device: Annotated[str, typer.Option(help="'cpu', 'cuda', 'cuda:N' or 'tpu'.")] = "cpu"
    mode: Annotated[
        Mode,
        typer.Option(
            help="Of 'ring'. 'eager'; 'compile': one program for a piece, one for a step; 'fuse': TorchTPU's own."
        ),
    ] = Mode.EAGER
    sizes: Annotated[
        int,
        typer.Option(
            help="With --mode compile: sizes of the filled context that are compiled; 1: strictly two programs.", min=1
        ),
    ] = 4
    stream: Annotated[
        bool | None,
        typer.Option(
            "--stream/--no-stream",
            help="Read every token back as it is made, or all at the end.",
            show_default="--stream with --mode eager",
        ),
    ] = None
    threads: Annotated[
        int | None, typer.Option(help="CPU threads.", show_default="the engine's own number", min=1, max=1024)
    ] = None
    trust_remote_code: Annotated[
        bool,
        typer.Option(
            "--trust-remote-code",
            help="Run the Python code that a model brings along, with all rights that you have; without this such a "
            "model is refused.",
        ),
    ] = False
    kv_type: Annotated[KVType, typer.Option(help="Number format of the KV cache.", rich_help_panel=_LLAMA_CPP)] = (
        KVType.F16
    )
    flash_attention: Annotated[
        bool, typer.Option("--flash-attention/--no-flash-attention", rich_help_panel=_LLAMA_CPP)
    ] = True
    url: Annotated[
        str | None, typer.Option(help="Where the server is: 'http://host:port'.", rich_help_panel=_SERVER)
    ] = None
    api: Annotated[
        Api,
        typer.Option(
            help="'completions': ids to /v1/completions. 'chat': messages to /v1/chat/completions. 'llama': ids to "
            "llama-server's own /completion.",
            rich_help_panel=_SERVER,
        ),
    ] = Api.COMPLETIONS
    parallel: Annotated[int, typer.Option(help="Requests under way at once.", min=1, rich_help_panel=_SERVER)] = 1
    timeout: Annotated[
        float | None,
        typer.Option(
            help="Seconds that a server, or llama.cpp, may take for an answer.",
            show_default="600, llama.cpp 3600",
            min=0.1,
            max=1_000_000,
            rich_help_panel=_SERVER,
        ),
    ] = None
    retries: Annotated[
        int, typer.Option(help="Times to ask again after 429, 5xx, a lost connection.", min=0, rich_help_panel=_SERVER)
    ] = 5
    api_key_env: Annotated[
        str, typer.Option(help="The environment variable that holds the API key.", rich_help_panel=_SERVER)
    ] = "RECALL_API_KEY"
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="'demo', a local folder or a hub name: makes the ids.",
            show_default="the server's own /tokenize",
            rich_help_panel=_SERVER,
        ),
    ] = None

    def open(self) -> "Engine":
        """Open the engine.

        Raises:
            EngineError: for a model it cannot load, or an option it cannot serve.
            RecallError: for an option that is missing.
        """
        from engines import open_engine

        return open_engine(self.engine, self.options())

    def options(self) -> "EngineOptions":
        """Return how the engine is to be opened.

        Raises:
            RecallError: for an option that is missing, or a demo model that is not installed.
        """
        from dataclasses import replace

        from engines import EngineOptions, LlamaCppOptions, ServerOptions
        from recall import models
        from recall.errors import RecallError

        options = EngineOptions(
            models.resolve(self.model, self.engine),
            models.shown_name(self.model),
            self.dtype.value,
            self.device,
            self.threads,
            self.mode.value,
            self.sizes,
            self.stream,
            llama_cpp=LlamaCppOptions(self.kv_type.value, self.flash_attention, self.timeout or 3600.0),
            trust_remote_code=self.trust_remote_code,
        )
        if self.engine != "server":
            return options
        if self.url is None:
            raise RecallError("--engine server needs --url: say where the server is, for example http://localhost:8000")
        server = ServerOptions(
            self.url,
            self.api.value,
            self.parallel,
            self.timeout or 600.0,
            self.retries,
            self.api_key_env,
            None if self.tokenizer is None else models.resolve(self.tokenizer),
        )
        return replace(options, server=server)


def with_engine_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command all options of `EngineArguments`; it is called with them as its argument `engine`."""
    own = inspect.signature(command).parameters
    shared = inspect.signature(EngineArguments).parameters

    @wraps(command)
    def run(context_of_call: typer.Context, **values: Any) -> None:
        engine = EngineArguments(**{name: values.pop(name) for name in shared})
        _refuse_options_of_others(context_of_call, engine.engine)
        command(engine=engine, **values)

    of_call = inspect.Parameter("context_of_call", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    every = [*(own[name] for name in own if name != "engine"), *shared.values()]
    parameters = [of_call, *(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in every)]
    # Typer takes a command's options from these two.
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _refuse_options_of_others(context: typer.Context, engine: str) -> None:
    from recall.engine_specs import TAKEN_BY
    from recall.errors import RecallError

    for option, engines in TAKEN_BY.items():
        source = context.get_parameter_source(option)
        # By its name: releases of typer differ in where this enumeration comes from.
        if source is not None and source.name == "COMMANDLINE" and engine not in engines:
            shown = option.replace("_", "-")
            raise RecallError(f"--{shown} is for --engine {' and '.join(engines)}; leave it out with --engine {engine}")
