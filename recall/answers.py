r"""Reads the codes or record numbers in a model's reply, strictly: whole numbers, never a part of a longer one.

How a code is set does not matter: "610,395", "6 1 0 3 9 5", "**610395**", full-width or Arabic digits are the code
that a reader sees. Text inside thinking marks is not read, nor are addresses of pages. A decimal, a compound such as
"555-610395" and an identifier such as "0x610395" are no codes: where a reader would doubt, there is none. Every
different code is returned: a reply with two is a case of its own, and choosing one is nobody's business here.
"""

import re
from collections.abc import Iterator

# Opening and closing marks of thinking text: the common tags, Mistral's, Gemma 4's channel, gpt-oss' channels, Kimi's,
# Seed's.
_THINKING = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("[THINK]", "[/THINK]"),
    ("<|channel>thought", "<channel|>"),
    ("<|channel|>analysis", "<|channel|>final"),
    ("◁think▷", "◁/think▷"),
    ("<seed:think>", "</seed:think>"),
)
# Characters without a width of their own: soft hyphens, zero-width and direction marks, what makes a digit a keycap.
_UNSEEN = re.compile(r"[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufe0f\u20e3\ufeff]")
_ADDRESS = re.compile(r"https?://[^\s)>\"]+", re.IGNORECASE)
_OTHER_DIGIT = re.compile(r"(?![0-9])\d")
# Markdown's marks. About a part of a number, as in "**610**395", they come in pairs; any other between two digits
# parts them ("610*395" is a product, "610~395" a range).
_EMPHASIS = re.compile(r"([*`~]{1,3})(\d+)\1")
_BETWEEN_DIGITS = re.compile(r"(?<=\d)[*`~]+(?=\d)")
_MARK = re.compile(r"[*`~]+")

# The plain space, and the kinds of space that are set inside numbers.
_SPACE = r"[\ \u00a0\u2000-\u200a\u202f]"
# A number as it may be written: in groups of one, two or three digits, with one and the same separator between
# all of them; else digits on end. Comma and space together separate single digits only, and only a whole code of
# them: else "record 3, 6 1 0 3 9 5" would begin with the number 36. What a point, a hyphen or Latin letters join to
# it belongs to it: decimals, dates, versions, hexadecimals, identifiers.
_NUMBER = re.compile(
    rf"""
    (?: (?<!\S) \. (?=\d) )?
    (?:
        (?: \d (?: ,{_SPACE} \d ){{5,}}
          | \d (?P<one> ,|{_SPACE} ) \d (?: (?P=one) \d )*
          | \d\d (?P<two> ,|{_SPACE} ) \d\d (?: (?P=two) \d\d )+
          | \d{{1,3}} (?P<three> [,'\u2019\u066c]|{_SPACE}|\{{,\}}|\\, ) \d{{3}} (?: (?P=three) \d{{3}} )*
        ) (?!\d)
      | \d+
    )
    (?: [.\-\u2011] \d+ | [A-Za-z_]++ \d+ )*
    """,
    re.ASCII | re.VERBOSE,
)
_SEPARATORS = re.compile(rf"[,'\u2019\u066c{{}}\\]|{_SPACE}")
# Several codes may stand with hyphens between, as they may with commas; beside anything else a hyphen makes no code.
_CODES = re.compile(r"\d{6}(?:[-\u2011]\d{6})*", re.ASCII)
_HYPHEN = re.compile(r"[-\u2011]")
_RECORD = re.compile(r"\d{1,5}", re.ASCII)


def codes_in(reply: str) -> list[str]:
    """Return the different six-digit codes that a reply gives, in their order; leading zeros are kept."""
    found = (_HYPHEN.split(number) for number in _numbers(reply) if _CODES.fullmatch(number))
    return list(dict.fromkeys(code for codes in found for code in codes))


def records_in(reply: str) -> list[str]:
    """Return the different record numbers that a reply gives, in their order, as five digits.

    A number of one to five digits is one, with or without its leading zeros: "33" and "00033" are the same.
    """
    return list(dict.fromkeys(number.zfill(5) for number in filter(_RECORD.fullmatch, _numbers(reply))))


def _numbers(reply: str) -> Iterator[str]:
    """Yield every number of a reply without its separators, and with all that makes it no code."""
    text = _ADDRESS.sub("\n", _UNSEEN.sub("", _without_thinking(reply)))
    text = _OTHER_DIGIT.sub(lambda digit: str(int(digit[0])), text)
    text = _BETWEEN_DIGITS.sub("\n", _EMPHASIS.sub(r"\2", text))
    return (_SEPARATORS.sub("", match[0]) for match in _NUMBER.finditer(_MARK.sub("", text)))


def _without_thinking(reply: str) -> str:
    for opening, closing in _THINKING:
        # Thinking that never ends has no answer after it. What it stood between does not become one number.
        reply = re.sub(rf"{re.escape(opening)}.*?({re.escape(closing)}|\Z)", "\n", reply, flags=re.DOTALL)
        # A closing mark without an opening one: the reply began inside thinking text that the prompt had opened.
        reply = reply.rpartition(closing)[2]
    return reply
