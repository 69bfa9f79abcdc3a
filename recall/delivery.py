"""Says whether an answer is one to the whole prompt: what is not proven to be is no missed needle."""

from dataclasses import dataclass
from typing import Literal

from engines import Completion
from generators import Gives, Prompt

# A server's own chat template may say more than the set's tokenizer did: a system turn, a date.
_TEMPLATE_ROOM = 64
_GIVES: dict[Gives, str] = {"code": "a code", "codes": "all codes", "number": "a record number"}


@dataclass(frozen=True)
class Delivery:
    """Whether an answer counts, and what is to be said about it."""

    status: Literal["ok", "invalid"]
    note: str | None = None


def check_delivery(
    prompt: Prompt, sent: int | None, completion: Completion, *, answered: bool, other: str | None = None
) -> Delivery:
    """Compare what was sent with what the engine says it read, and look how the answer ended.

    Args:
        prompt: what was asked.
        sent: ids that the engine was given; None: it got text, and made its own ids.
        completion: what it answered.
        answered: whether the answer gives all that was asked for, right or wrong.
        other: the prompt that the answer is right for, where no record of this one has its code.
    """
    read, wanted = completion.tokens_read, prompt.prompt_tokens if sent is None else sent
    flaw, odd = None, completion.note
    if read is None:
        flaw = "the engine gives no count of the tokens it read: nothing proves that it got the whole prompt"
    elif read < wanted:
        flaw = f"cut: the prompt has {wanted} tokens and the engine read {read}; give the server a larger context"
    elif read == wanted + 1 and sent is not None:
        flaw = f"the engine read {read} tokens where {sent} were sent: a second BOS, most likely"
    elif read > wanted and (sent is not None or read > wanted + _TEMPLATE_ROOM):
        flaw = f"the engine read {read} tokens where the prompt has {wanted}: something was added to it"
    elif read > wanted:
        odd = odd or f"the engine's own template makes {read} tokens of it, the set's tokenizer {wanted}"
    if flaw is None and other is not None:
        flaw = f"it is the answer to prompt {other!r}, and no record of this one has that code"
    if flaw is None and completion.finish == "length" and not answered:
        flaw = f"the answer was cut off before it gave {_GIVES[prompt.task.gives]}; give a larger --max-new"
    return Delivery("invalid", flaw) if flaw else Delivery("ok", odd)
