"""A model behind HTTP: an OpenAI-compatible server or llama-server's own API, as an engine like any other.

Ids are sent wherever a server takes them, decoding is greedy, and what the server says that it read goes into the
answer: an answer to a cut prompt can be told from a wrong one.
"""

import threading
from typing import Any

from engines.errors import EngineError
from engines.fits import check_fits
from engines.protocol import TOP, Completion, EngineInfo, EngineOptions, OnRead, Request
from engines.server_http import ServerError, Transport
from engines.server_replies import read_chat, read_completions, read_llama

# What makes answers better to compare, where a server knows of it: nothing out of llama-server's cache; special
# tokens in the text, because thinking marks are some (vLLM).
_EXACT = {"cache_prompt": False, "skip_special_tokens": False}
# The likeliest tokens at each place, and whose ids they are (vLLM; llama-server tells ids anyway).
_TOLD = {"logprobs": TOP, "return_token_ids": True, "return_tokens_as_token_ids": True}
# Where a server says what it is: llama-server, vLLM.
_VERSIONS = {"/props": "build_info", "/version": "version"}


class ServerEngine:
    """A server that answers by one of three APIs; several threads may ask at once."""

    def __init__(self, options: EngineOptions, backoff_s: float = 0.5) -> None:
        """Look whether the server `options.server` is there.

        Args:
            options: what it calls the model, and how it is reached.
            backoff_s: seconds until a request is first sent again; see `Transport`.

        Raises:
            EngineError: when it is not there or does not take the key, or the tokenizer cannot be loaded.
        """
        if options.server is None:
            raise EngineError("--engine server needs --url: say where the server is")
        self._server = options.server
        self._model = str(options.model)
        self._transport = Transport(self._server, backoff_s)
        self._transport.check_there()
        # Set once a server has refused what it need not know of, and answered without it.
        self._plain = False
        self._tokenizer = _load_tokenizer(options)
        self._one_at_a_time = threading.Lock()
        self._info = EngineInfo(
            engine="server",
            model=options.model_name,
            dtype=None,
            device=None,
            settings={"api": self._server.api, "url": self._transport.url},
            versions=self._versions(),
            parallel=self._server.parallel,
        )

    @property
    def info(self) -> EngineInfo:
        """What this engine is; of the server's address without user and password."""
        return self._info

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def encode(self, text: str) -> list[int] | None:
        """Return the ids of a complete text, nothing added; None with an API that takes only messages.

        Raises:
            EngineError: when there is no local tokenizer, and the server gives no ids.
        """
        if self._server.api == "chat":
            return None
        if self._tokenizer is not None:
            # A fast tokenizer notes its settings anew for each text, and fails where another thread is using it.
            with self._one_at_a_time:
                ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False, verbose=False)
            return ids
        # One body for both that have such an endpoint: llama-server knows `content`, vLLM `prompt`.
        body = {"model": self._model, "content": text, "add_special": False, "parse_special": True}
        mend = f"--url {self._transport.host} makes no ids of a text; give --tokenizer: the model's folder or hub name"
        try:
            answer = self._transport.post("/tokenize", {**body, "prompt": text, "add_special_tokens": False})
        except ServerError as error:
            if error.may_pass or error.status in (401, 403):
                raise
            raise EngineError(f"{mend} ({error})") from error
        tokens = answer.get("tokens")
        if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
            raise EngineError(f"{mend} (its answer has no `tokens`)")
        return tokens

    def complete(self, request: Request, on_read: OnRead) -> Completion:
        """Send the prompt, wait for the whole answer, and tell what the server tells of it.

        Raises:
            EngineError: when prompt and answer do not fit into the context, or the server gives no usable answer.
        """
        check_fits(request)
        match self._server.api:
            case "llama":
                completion = self._complete_llama(request)
            case "completions":
                completion = self._complete_completions(request)
            case "chat":
                completion = self._complete_chat(request)
        on_read(len(request.ids))
        return completion

    def _complete_llama(self, request: Request) -> Completion:
        body = self._body(request, "n_predict") | {
            "prompt": list(request.ids),
            "cache_prompt": False,
            # Nothing but the temperature, which is 0: no penalty that the server was started with moves a choice.
            "samplers": ["temperature"],
            # Of the model's own distribution, before sampling.
            "n_probs": TOP,
            "post_sampling_probs": False,
            "return_tokens": True,
        }
        return read_llama(self._transport.post("/completion", body), request, self._transport.host)

    def _complete_completions(self, request: Request) -> Completion:
        body = self._body(request, "max_tokens") | {"prompt": list(request.ids)}
        answer = self._post_with_extras("/v1/completions", body, _EXACT | _TOLD)
        return read_completions(answer, request, self._transport.host)

    def _complete_chat(self, request: Request) -> Completion:
        body = self._body(request, "max_tokens") | {"messages": [{"role": "user", "content": request.message}]}
        answer = self._post_with_extras("/v1/chat/completions", body, _EXACT)
        return read_chat(answer, request, self._transport.host)

    def _body(self, request: Request, length: str) -> dict[str, Any]:
        stop = {} if request.stop is None else {"stop": [request.stop]}
        return {"model": self._model, "temperature": 0, length: request.max_new, "stream": False, **stop}

    def _post_with_extras(self, path: str, body: dict[str, Any], extras: dict[str, Any]) -> dict[str, Any]:
        """Send body and extras; only the body where the server refuses the two together and takes it alone."""
        if not self._plain:
            try:
                return self._transport.post(path, body | extras)
            except ServerError as error:
                if error.status not in (400, 422):
                    raise
        answer = self._transport.post(path, body)
        self._plain = True
        return answer

    def _versions(self) -> dict[str, str]:
        if self._tokenizer is None:
            versions = {}
        else:
            import transformers

            versions = {"transformers": transformers.__version__}
        for path, name in _VERSIONS.items():
            version = self._transport.look(path).get(name)
            if isinstance(version, str):
                return {"server": version, **versions}
        return versions


def _load_tokenizer(options: EngineOptions) -> Any:
    """Return the tokenizer that makes the ids; None when the server makes them, or nobody does."""
    server = options.server
    if server is None or server.tokenizer is None:
        return None
    if server.api == "chat":
        raise EngineError("--tokenizer makes ids, and --api chat takes only messages; leave one of the two out")
    import transformers

    try:
        return transformers.AutoTokenizer.from_pretrained(str(server.tokenizer), trust_remote_code=False)
    except Exception as error:  # of every kind: whatever transformers stumbles over in a damaged folder
        raise EngineError(f"--tokenizer {str(server.tokenizer)!r} is none that transformers can load") from error
