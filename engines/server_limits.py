"""What a server says of itself that bounds a run: tokens that a request may have, requests at once, its BOS."""

from dataclasses import dataclass

from engines.protocol import ServerOptions
from engines.server_http import Transport


@dataclass(frozen=True)
class ServerLimits:
    """Limits; None where the server says nothing.

    Attributes:
        context: tokens of prompt and answer that one request may have; llama-server's is its --ctx-size divided by its
            --parallel.
        slots: requests that it answers at once.
        bos: the mark of its model's BOS.
    """

    context: int | None
    slots: int | None
    bos: str | None


def server_limits(options: ServerOptions) -> ServerLimits:
    """Ask llama-server's `/props`, then vLLM's list of models.

    Raises:
        EngineError: for an address that is none, or a key that no header can carry.
    """
    transport = Transport(options)
    try:
        props = transport.look("/props")
        settings = props.get("default_generation_settings")
        context = _count(settings.get("n_ctx")) if isinstance(settings, dict) else None
        if context is None:
            models = transport.look("/v1/models").get("data")
            first = models[0] if isinstance(models, list) and models else None
            context = _count(first.get("max_model_len")) if isinstance(first, dict) else None
        bos = props.get("bos_token")
        return ServerLimits(context, _count(props.get("total_slots")), bos if isinstance(bos, str) and bos else None)
    finally:
        transport.close()


def _count(value: object) -> int | None:
    return value if type(value) is int and value > 0 else None
