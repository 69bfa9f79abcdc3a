"""Reads the six-digit codes in a model's reply, strictly: a code is a whole number, never a part of a longer one.

Commas, spaces and markdown inside or around a code do not matter ("610,395", "6 1 0 3 9 5", "**610395**"), nor
does text inside thinking marks. Every different code is returned: a reply with two is a case of its own, and
choosing one is nobody's business here.
"""

import re

# Opening and closing marks of thinking text: the common tags, Mistral's, Gemma 4's channel.
_THINKING = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("[THINK]", "[/THINK]"),
    ("<|channel>thought", "<channel|>"),
)
_MARKDOWN = re.compile(r"[*`~]")

# The plain space, and the kinds of space that are set inside numbers.
_SPACE = r"[\ \u00a0\u2007\u2009\u202f]"
# A number as it may be written: in groups of one, two or three digits, with one and the same separator between
# all of them; else digits on end. Comma and space together separate single digits only, and only a whole code of
# them: else "record 3, 6 1 0 3 9 5" would begin with the number 36. What follows a decimal point belongs to it.
_NUMBER = re.compile(
    rf"""
    (?:
        (?: \d (?: ,{_SPACE} \d ){{5,}}
          | \d (?P<one> ,|{_SPACE} ) \d (?: (?P=one) \d )*
          | \d\d (?P<two> ,|{_SPACE} ) \d\d (?: (?P=two) \d\d )*
          | \d{{1,3}} (?P<three> ,|{_SPACE} ) \d{{3}} (?: (?P=three) \d{{3}} )*
        ) (?!\d)
      | \d+
    ) (?: \.\d+ )*
    """,
    re.ASCII | re.VERBOSE,
)
_CODE = re.compile(r"\d{6}", re.ASCII)


def codes_in(reply: str) -> list[str]:
    """Return the different six-digit codes that a reply gives, in their order; leading zeros are kept."""
    text = _MARKDOWN.sub("", _without_thinking(reply))
    numbers = (re.sub(r"[^\d.]", "", match[0]) for match in _NUMBER.finditer(text))
    return list(dict.fromkeys(filter(_CODE.fullmatch, numbers)))


def _without_thinking(reply: str) -> str:
    for opening, closing in _THINKING:
        # Thinking that never ends has no answer after it.
        reply = re.sub(rf"{re.escape(opening)}.*?({re.escape(closing)}|\Z)", " ", reply, flags=re.DOTALL)
        # A closing mark without an opening one: the reply began inside thinking text that the prompt had opened.
        reply = reply.rpartition(closing)[2]
    return reply
