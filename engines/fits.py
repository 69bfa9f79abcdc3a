"""Says before anything is read whether a prompt and its answer fit into the context."""

from engines.errors import EngineError
from engines.protocol import Request


def check_fits(request: Request) -> None:
    """Raise `EngineError` when prompt and answer do not fit into the context together."""
    if len(request.ids) + request.max_new > request.context:
        raise EngineError(
            f"prompt {request.prompt_id!r} has {len(request.ids)} tokens and its answer up to {request.max_new}: "
            f"they do not fit into a context of {request.context}; give a larger --context or a smaller --max-new"
        )
