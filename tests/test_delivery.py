"""An answer counts only when the engine proves that it read the whole prompt, and no more than that."""

from dataclasses import replace
from pathlib import Path

import pytest

from engines import Completion
from engines.protocol import Choice
from generators import Prompt, PromptTokenizer, make_prompts, read_prompts, seeded_specs
from recall.delivery import Delivery, check_delivery
from recall.results import AnswerToken, Outcome, ResultRow, read_results, write_results
from recall.scoring import agreement_with, answer_token
from tests.conftest import run_recall

PROMPT_TOKENS = 32_761


@pytest.fixture(scope="module")
def prompt(byte_folder: Path) -> Prompt:
    specs = seeded_specs("chat", seed=1, budgets=[512], contexts=[512], depths=[0.5])
    (made,) = make_prompts(specs, PromptTokenizer(byte_folder), "chat")
    return made.model_copy(update={"prompt_tokens": PROMPT_TOKENS})


def _check(prompt: Prompt, read: int | None, *, sent: int | None = PROMPT_TOKENS, code: str = "123456") -> Delivery:
    completion = Completion(code, tokens_read=read, finish="stop")
    return check_delivery(prompt, sent, completion, answered=bool(code))


def test_a_prompt_that_was_read_whole_counts_with_or_without_a_code(prompt: Prompt) -> None:
    assert _check(prompt, PROMPT_TOKENS) == _check(prompt, PROMPT_TOKENS, code="") == Delivery("ok")


@pytest.mark.parametrize("read", [0, 4096, PROMPT_TOKENS - 1])
@pytest.mark.parametrize("sent", [PROMPT_TOKENS, None])
def test_a_cut_prompt_is_invalid_even_where_the_code_was_found(prompt: Prompt, read: int, sent: int | None) -> None:
    cut = _check(prompt, read, sent=sent)
    assert cut.status == "invalid"
    assert f"the prompt has {PROMPT_TOKENS} tokens and the engine read {read}" in str(cut.note)


def test_one_token_more_than_was_sent_is_a_second_bos(prompt: Prompt) -> None:
    doubled = _check(prompt, PROMPT_TOKENS + 1)
    assert (doubled.status, "a second BOS" in str(doubled.note)) == ("invalid", True)


def test_more_tokens_than_were_sent_are_invalid(prompt: Prompt) -> None:
    assert _check(prompt, PROMPT_TOKENS + 2).status == "invalid"


def test_a_chat_template_of_the_server_may_say_a_little_more_and_that_is_noted(prompt: Prompt) -> None:
    little, much = (_check(prompt, PROMPT_TOKENS + more, sent=None) for more in (64, 65))
    assert little == Delivery(
        "ok", f"the engine's own template makes {PROMPT_TOKENS + 64} tokens of it, the set's tokenizer {PROMPT_TOKENS}"
    )
    assert much.status == "invalid"


def test_without_a_count_of_what_was_read_nothing_is_proven(prompt: Prompt) -> None:
    assert _check(prompt, None).status == "invalid"


def test_an_answer_cut_off_before_its_code_is_invalid_and_one_cut_off_behind_it_counts(prompt: Prompt) -> None:
    completion = Completion("it is", tokens_read=PROMPT_TOKENS, finish="length")
    cut = check_delivery(prompt, PROMPT_TOKENS, completion, answered=False)
    assert (cut.status, "larger --max-new" in str(cut.note)) == ("invalid", True)
    assert check_delivery(prompt, PROMPT_TOKENS, completion, answered=True) == Delivery("ok")


def test_an_answer_to_another_prompt_of_the_set_is_invalid_and_any_other_wrong_code_counts(
    byte_folder: Path, tmp_path: Path
) -> None:
    made = ["--budget", 512, "--count", 3, "--format", "completion", "--tokenizer", byte_folder]
    assert run_recall("generate", *made, "-o", tmp_path / "set.jsonl").code == 0
    first, second, third = read_prompts(tmp_path / "set.jsonl")
    replies = {first.id: second.code, second.id: second.code, third.id: "999999"}
    read = {prompt.id: prompt.prompt_tokens for prompt in (first, second, third)}
    answers = [_row(prompt_id=name, reply=reply, tokens_read=read[name]) for name, reply in replies.items()]
    write_results(tmp_path / "mixed.jsonl", answers)
    recorded = ["--engine", "recorded", "--model", tmp_path / "mixed.jsonl", "-o", tmp_path / "rows.jsonl"]
    assert run_recall("score", tmp_path / "set.jsonl", *recorded).code == 3
    rows = read_results(tmp_path / "rows.jsonl")
    assert [row.status for row in rows] == ["invalid", "ok", "ok"]
    assert rows[0].note == f"it is the answer to prompt {second.id!r}, and no record of this one has that code"
    assert [row.outcome for row in rows] == [Outcome.NO_RECORD, Outcome.FOUND, Outcome.NO_RECORD]


def test_what_an_engine_notes_stays_with_an_answer_that_counts(prompt: Prompt) -> None:
    completion = replace(Completion("123456", tokens_read=PROMPT_TOKENS), note="odd")
    assert check_delivery(prompt, PROMPT_TOKENS, completion, answered=True) == Delivery("ok", "odd")


def _row(**fields: object) -> ResultRow:
    known = {"prompt_id": "p", "engine": "e", "model": "m", "context": 512, "prompt_tokens": 400, "records": 9}
    asked = {"asked_record": 2, "code": "111111", "answer": None, "codes": [], "outcome": Outcome.NO_CODE}
    rest = {"found": False, "record": None, "reply": "", "tokens_sent": 400, "tokens_read": 400}
    return ResultRow.model_validate(known | asked | rest | fields)


def test_two_answers_cut_off_alike_are_the_same_and_what_did_not_read_the_prompt_is_compared_with_nothing() -> None:
    cut_off = _row(status="invalid", finish="length")
    ended = _row(finish="stop")
    cut_prompt = _row(status="invalid", finish="length", tokens_read=100)
    assert agreement_with(cut_off, cut_off).same is True
    assert agreement_with(ended, ended).same is True
    assert agreement_with(cut_off, ended).same is None
    assert agreement_with(cut_prompt, cut_prompt).same is None
    assert (cut_off.failed, ended.failed, cut_prompt.failed) == (False, False, True)


def test_the_margin_of_a_token_is_taken_to_the_likeliest_other_one() -> None:
    first = answer_token(Choice(7, -0.5, [(7, -0.5), (3, -1.25), (4, -3.0)]))
    assert first == AnswerToken(id=7, logprob=-0.5, runner_up=3, margin=0.75, top=[(7, -0.5), (3, -1.25), (4, -3.0)])
    beaten = answer_token(Choice(3, -1.25, [(7, -0.5), (3, -1.25)]))  # an engine may choose what is not the likeliest
    assert (beaten.runner_up, beaten.margin) == (7, -0.75)
    alone = answer_token(Choice(7, 0.0, [(7, 0.0)]))
    assert (alone.runner_up, alone.margin) == (None, None)
