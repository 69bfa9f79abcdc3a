"""A code is read out of a reply strictly: found however it is set, never found inside a longer number."""

import pytest

from recall.answers import codes_in

CODE = ["610395"]

ONE_CODE = {
    "alone": "610395",
    "in a sentence": "The secret access code of record 00033 is 610395.",
    "exclamation mark": "610395!",
    "parentheses": "(610395)",
    "quotes": '"610395"',
    "dollar sign": "$610395",
    "number sign": "#610395",
    "minus sign or bullet": "-610395",
    "slash": "610395/",
    "colon before": "Record 33:610395",
    "end of line": "610395\n",
    "letters before": "ID610395",
    "letters after": "610395th",
    "Chinese text": "密码是610395。",
    "numbered list": "1. 610395",
    "full stop and the next sentence": "610395. 33 is the record.",
    "full stop on the next line": "610395.\n33",
    "comma inside": "610,395",
    "comma inside, in a sentence": "It is 610,395, the code of record 33.",
    "space inside": "610 395",
    "no-break space inside": "610\u00a0395",
    "narrow no-break space inside": "610\u202f395",
    "digit by digit, spaces": "6 1 0 3 9 5",
    "digit by digit, commas": "6,1,0,3,9,5",
    "digit by digit, commas and spaces": "6, 1, 0, 3, 9, 5",
    "in pairs": "61 03 95",
    "bold": "**610395**",
    "italic": "*610395*",
    "underlined": "__610395__",
    "monospace": "`610395`",
    "code block": "```\n610395\n```",
    "struck out and given again": "~~610395~~ 610395",
    "bold in part": "**610**395",
    "monospace in part": "`610`395",
    "bold with a comma inside": "**610,395**",
    "record number and comma before": "Record 33, 610395",
    "record number and comma before, no space": "33,610395",
    "record number and space before": "Record 33 610395",
    "record number of five digits before": "Record 00033 610 395",
    "record number before a spelled one": "Record 33 6 1 0 3 9 5",
    "record number of one digit before a spelled one": "Record 3, 6 1 0 3 9 5",
    "number after": "610395, 33",
    "number after a grouped one": "610 395, 33",
    "seven digits before": "1234567 610395",
    "the same twice": "610395\n610395",
    "the same twice, set differently": "610395 is 610,395 or **6 1 0 3 9 5**",
    "closed thinking before": "<think>Record 723 is 319550.</think>610395",
    "closed thinking after": "610395<think>Or 319550?</think>",
    "two thoughts": "<think>319550</think><think>713468</think>610395",
    "thinking over lines": "<think>\n319550\n\n713468\n</think>\n\n610395",
    "unclosed thinking after": "610395 <think>or was it 319550",
    "only a closing mark": "Record 723 is 319550.</think>610395",
    "only closing marks": "319550</think>713468</think>610395",
    "only a closing mark, then a whole thought": "319550</think>610395<think>713468</think>",
    "thinking in the long tag": "<thinking>319550</thinking>610395",
    "thinking in Mistral's marks": "[THINK]319550[/THINK]610395",
    "thinking in Gemma's channel": "<|channel>thought\n319550<channel|>610395",
    "empty thought in Gemma's channel": "<|channel>thought\n<channel|>610395",
    "code in the thought, too": "<think>610395</think>610395",
}

NO_CODE = {
    "empty": "",
    "blanks": " \n",
    "no digits": "I do not know the code.",
    "five digits": "61039",
    "seven digits": "6103951",
    "seven digits, the code last": "1610395",
    "longer number with commas": "1,610,395",
    "longer number with spaces": "1 610 395",
    "longer number with commas, the code first": "610,395,319",
    "longer number, bold in part": "1**610395**",
    "longer number spelled": "6 1 0 3 9 5 2",
    "eight digits": "61039533",
    "decimal places": "610395.50",
    "decimal places and comma": "610,395.50",
    "decimal places, digit by digit": "6 1 0 3 9 5.5",
    "after a decimal point": "0.610395",
    "after a longer decimal": "12.610395",
    "point inside": "610.395",
    "hyphen inside": "610-395",
    "hyphens inside": "6-1-0-3-9-5",
    "line end inside": "610\n395",
    "two short numbers": "33 of 135",
    "record number alone": "Record 00033",
    "comma at another place": "6103,95",
    "only in closed thinking": "<think>610395</think>",
    "only in unclosed thinking": "<think>Record 33 is 610395.",
    "only before a closing mark": "610395</think>",
    "only in unclosed thinking of Gemma's": "<|channel>thought\n610395",
}

SEVERAL = {
    "in a list": ("610395, 319550", ["610395", "319550"]),
    "commas without spaces": ("610395,319550", ["610395", "319550"]),
    "either": ("Either 319550 or 610395.", ["319550", "610395"]),
    "corrected": ("~~319550~~ 610395", ["319550", "610395"]),
    "grouped, with a space between": ("610,395 319,550", ["610395", "319550"]),
    "grouped, with a comma between": ("610 395,319 550", ["610395", "319550"]),
    "grouped, on two lines": ("610 395\n319 550", ["610395", "319550"]),
    "spelled, with a comma between": ("6 1 0 3 9 5,3 1 9 5 5 0", ["610395", "319550"]),
    "in pairs, with a comma between": ("61 03 95,31 95 50", ["610395", "319550"]),
    "spelled, on two lines": ("6 1 0 3 9 5\n3 1 9 5 5 0", ["610395", "319550"]),
    "one of them twice": ("610395 319550 610395", ["610395", "319550"]),
    "a code and one in its thought's tail": ("<think>1</think>713468 or 610395", ["713468", "610395"]),
    "a leading zero apart": ("010395 610395", ["010395", "610395"]),
}


@pytest.mark.parametrize("reply", ONE_CODE.values(), ids=ONE_CODE)
def test_one_code_is_read_however_it_is_set(reply: str) -> None:
    assert codes_in(reply) == CODE


@pytest.mark.parametrize("reply", NO_CODE.values(), ids=NO_CODE)
def test_what_is_no_whole_six_digit_number_is_no_code(reply: str) -> None:
    assert codes_in(reply) == []


@pytest.mark.parametrize(("reply", "codes"), SEVERAL.values(), ids=SEVERAL)
def test_every_different_code_is_read_in_its_order(reply: str, codes: list[str]) -> None:
    assert codes_in(reply) == codes


@pytest.mark.parametrize("reply", ["012345", "012,345", "0 1 2 3 4 5", "**012345**", "012345."])
def test_leading_zeros_are_kept(reply: str) -> None:
    assert codes_in(reply) == ["012345"]


def test_a_number_with_zeros_in_front_is_not_the_number_without_them() -> None:
    assert codes_in("0610395") == []
    assert codes_in("000001") == ["000001"]
