"""The plain reference: transformers' own `generate` on the whole prompt, greedy."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import StoppingCriteria, StoppingCriteriaList

from engines.choices import choices_of, likeliest, usable
from engines.devices import enough_memory
from engines.errors import EngineError
from engines.loading import LoadedModel, check_fits
from engines.protocol import Completion, EngineInfo, EngineOptions, OnRead, Request


class HfEngine:
    """`generate` with its default cache, which grows with the prompt."""

    def __init__(self, options: EngineOptions) -> None:
        """Load `options.model`."""
        if options.mode != "eager":
            raise EngineError(f"--mode {options.mode} is for --engine ring: `hf` runs eagerly")
        self.loaded = LoadedModel(options)

    @property
    def info(self) -> EngineInfo:
        """What this engine is."""
        return self.loaded.info("hf", {})

    def encode(self, text: str) -> list[int]:
        """Return the ids of a complete text; nothing is added to it."""
        return self.loaded.encode(text)

    @torch.inference_mode()
    def complete(self, request: Request, on_read: OnRead) -> Completion:
        """Give `generate` the whole prompt at once."""
        check_fits(request)
        with enough_memory(len(request.ids) + request.max_new):
            return self._complete(request, on_read)

    def _complete(self, request: Request, on_read: OnRead) -> Completion:
        prompt = torch.tensor([list(request.ids)], device=self.loaded.device)
        watch = _Watch(self.loaded, len(request.ids), request.stop)
        start = time.perf_counter()
        output = self.loaded.model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=request.max_new,
            do_sample=False,
            eos_token_id=sorted(self.loaded.end_ids) or None,
            stopping_criteria=StoppingCriteriaList([watch]),
            return_dict_in_generate=True,
            output_logits=True,
        )
        end = time.perf_counter()
        on_read(len(request.ids))
        answer = output.sequences[0, len(request.ids) :]
        reply = answer.tolist()
        told = likeliest(torch.cat(output.logits), answer)
        return Completion(
            text=self.loaded.decode(reply),
            ids=reply,
            read_s=watch.first - start,
            decode_s=end - watch.first,
            decoded=len(reply) - 1,
            # Layers that use another one's keys and values have none of their own.
            cache_bytes=sum(
                layer.keys.nbytes + layer.values.nbytes for layer in output.cache.layers if layer.keys is not None
            ),
            tokens_read=len(request.ids),
            finish="stop" if self.loaded.ends(reply, request.stop) else "length",
            choices=choices_of(told[0].tolist(), told[1].tolist()),
        )

    @torch.inference_mode()
    def logits(self, ids: Sequence[int], last: int, context: int) -> NDArray[np.float32]:
        """Give the model all ids at once, without a cache; return the logits after the last `last`, `[last, V]`."""
        check_fits(Request("of a divergence", ids, 0, context))
        with enough_memory(len(ids)):
            prompt = torch.tensor([list(ids)], device=self.loaded.device)
            output = self.loaded.model(prompt, use_cache=False, logits_to_keep=last)
            return usable(output.logits[0])


class _Watch(StoppingCriteria):
    """Ends a reply where every engine ends it, and notes when its first token came."""

    def __init__(self, loaded: LoadedModel, prompt_tokens: int, stop: str | None) -> None:
        self.loaded = loaded
        self._prompt_tokens = prompt_tokens
        self._stop = stop
        self.first = 0.0

    def __call__(self, input_ids: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        reply = input_ids[0, self._prompt_tokens :].tolist()
        self.first = self.first or time.perf_counter()
        return torch.tensor([self.loaded.ends(reply, self._stop)], device=input_ids.device)
