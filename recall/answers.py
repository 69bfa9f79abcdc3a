"""Reads the six-digit codes in a model's reply, strictly: a code is a whole number, never a part of a longer one.

Punctuation and markdown around a code do not matter, nor do separators inside one ("610,395", "610 395",
"6 1 0 3 9 5"). Text inside thinking marks is not the answer. Every different code is returned: a reply with two
is a case of its own, and choosing one is nobody's business here.
"""

import re

DIGITS = 6

# Opening and closing marks of thinking text: the common tags, Mistral's, Gemma 4's channel.
_THINKING = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("[THINK]", "[/THINK]"),
    ("<|channel>thought", "<channel|>"),
)
_MARKDOWN = re.compile(r"[*`~]|(?<!\w)_+(?=\d)|(?<=\d)_+(?!\w)")
_BLANK = r"[ \u00a0\u2007\u2009\u202f]"
# What one number may be written like: digits on end, or groups of one, two or three digits with one and the same
# separator between them.
_GROUPED = re.compile(
    rf"(?<![\d.,])(?:\d(?:,{_BLANK}\d){{5,}}|\d(?P<one>,|{_BLANK}|-)\d(?:(?P=one)\d)+|"
    rf"\d\d(?P<two>,|{_BLANK})\d\d(?:(?P=two)\d\d)+|\d{{1,3}}(?P<three>,|{_BLANK})\d{{3}}(?:(?P=three)\d{{3}})*)"
    rf"(?!\d|[.,]\d)"
)
_NUMBER = re.compile(r"\d+(?:\.\d+)*")


def codes_in(reply: str) -> list[str]:
    """Return the different six-digit codes that a reply gives, in their order; leading zeros are kept."""
    text = _MARKDOWN.sub("", _without_thinking(reply))
    # A grouped number becomes plain digits first: "1,610,395" is then one number of seven digits, and no code.
    text = _GROUPED.sub(lambda match: re.sub(r"\D", "", match[0]), text)
    codes = [number for number in _NUMBER.findall(text) if len(number) == DIGITS and number.isdecimal()]
    return list(dict.fromkeys(codes))


def _without_thinking(reply: str) -> str:
    for opening, closing in _THINKING:
        # A reply may begin inside thinking text: then the prompt's template holds the opening mark.
        head, mark, tail = reply.partition(closing)
        if mark and opening not in head:
            reply = tail
        # Thinking that never ends has no answer after it.
        reply = re.sub(rf"{re.escape(opening)}.*?({re.escape(closing)}|\Z)", " ", reply, flags=re.DOTALL)
    return reply
