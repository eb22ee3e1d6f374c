"""Judging with a reward model: the decoder writes what greedy decoding writes, faster, and stops at the brace."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file

from nl_reward_model.infer import InferConfig, infer
from nl_reward_model.train_rm import train
from tests.fault_server import FaultServer
from tests.processes import flip_byte, run_ranks
from tests.reward_records import memorised, settings, slf5k_records, write
from tests.tiny import model, randomised, tiny_model, tokenizer
from text2grad.critics import load_critic
from text2grad.critics.reward_model import reading
from text2grad.critics.reward_model.critic import RewardModelCritic, RewardModelDescription
from text2grad.critics.reward_model.decoding import Drafter, FeedbackDecoder, Habits, closes_object
from text2grad.errors import InputError
from text2grad.feedback import Feedback, FeedbackError
from text2grad.grounding import ground
from text2grad.journal.checksums import save_checksums
from text2grad.models import load_model
from text2grad.models.decoder import Together
from text2grad.records import load_json, load_records, save_json
from text2grad.tasks import get_task

SLF5K = get_task("slf5k")
REPLY = SLF5K.render_feedback(Feedback("Fine.", ["I"]))


RECURRENT = {
    "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 8, "linear_value_head_dim": 8,
}  # fmt: skip


def go(way: str, monkeypatch) -> None:
    """How feedback's decoder reads a Llama: packed, or together as on a GPU, or as any other model."""
    monkeypatch.setenv("TEXT2GRAD_PACKED", "0" if way == "by transformers" else "1")
    if way == "as on a GPU":
        monkeypatch.setattr(reading, "Rows", lambda decoder, prompts, room: Together(decoder, prompts, 20, 9))


@pytest.mark.parametrize(
    ("family", "way"),
    [("llama", way) for way in ("packed", "as on a GPU", "by transformers")]
    + [(family, "") for family in ("gpt2", "gemma2", "gemma3_text", "qwen3_5_text")],
)
def test_decoding_writes_what_generate_writes(family, way, monkeypatch):
    """Left padding, shared prefixes (whole, partly wrong, none), rows that end early, guesses: nothing may show."""
    go(way, monkeypatch)
    special = {"gemma3_text": {"sliding_window": 8}, "qwen3_5_text": RECURRENT}  # a window less than the prompts
    lm, tok = model(family, **special.get(family, {})).eval(), tokenizer("byte")
    torch.manual_seed(1)
    prefix = torch.randint(4, 500, (6,)).tolist()
    prompts = [prefix + torch.randint(4, 500, (length,)).tolist() for length in (5, 11, 1)]
    limits = [12, 5, 9]
    expected = []
    for prompt, limit in zip(prompts, limits, strict=True):
        ids = lm.generate(torch.tensor([prompt]), max_new_tokens=limit, do_sample=False, pad_token_id=0)[0]
        expected.append([token for token in ids[len(prompt) :].tolist() if token != tok.eos_token_id])
    for lookahead, known in ((0, prefix), (3, []), (3, prefix), (3, [*prefix[:4], 7])):
        decoder = FeedbackDecoder(lm, tok, known, [(expected[0], "", "")], lookahead)
        assert decoder(prompts, limits, batch_size=2) == expected


@pytest.mark.parametrize("seed", range(3))
def test_a_row_at_a_models_last_position_is_read_beside_rows_with_longer_guesses(seed):
    lm, tok = randomised(model("gpt2", n_positions=64), 0.25), tokenizer("byte")
    torch.manual_seed(seed)
    prompts, example = [torch.randint(4, 300, (length,)).tolist() for length in (44, 25, 20)], tok("a b a b a b")
    decoder = FeedbackDecoder(lm, tok, examples=[(example["input_ids"], "a b", "a b")], lookahead=8)
    assert decoder(prompts, [20] * 3, 8) == FeedbackDecoder(lm, tok, lookahead=0)(prompts, [20] * 3, 1)


@pytest.mark.parametrize("way", ["as on a GPU", "by transformers"])
def test_nothing_but_the_choices_comes_back_from_the_device(way, monkeypatch):
    """A value that Python asks for makes a GPU wait: some for the prompts, none for the tokens."""
    go(way, monkeypatch)
    decoder = FeedbackDecoder(model("llama").eval(), tokenizer("byte"))
    passes, asked = [], []
    for limit in (2, 20):
        before = decoder.passes
        with torch.profiler.profile() as profile:
            decoder([[5, 6, 7, 8], [9, 10]], [limit, limit], batch_size=2)
        passes.append(decoder.passes - before)
        asked.append(sum(event.name in ("aten::item", "aten::nonzero") for event in profile.events()))
    assert passes[1] > 3 * passes[0] and asked[0] == asked[1]


def _write_together(folder: str) -> None:
    dist.init_process_group("gloo")
    lm = model("gpt2").eval()
    torch.manual_seed(dist.get_rank())  # weights that differ stand for an argmax that rounding turns
    for parameter in lm.parameters():
        parameter.data += torch.randn_like(parameter)
    lm.get_input_embeddings().weight.ds_id = 0  # as ZeRO-3 marks what it shards
    written = FeedbackDecoder(lm, tokenizer("byte"))([[5, 6, 7], [8, 9]], [12, 6], batch_size=2)
    (Path(folder) / f"{dist.get_rank()}.json").write_text(json.dumps(written))
    dist.destroy_process_group()


def test_ranks_of_a_sharded_model_write_the_same(tmp_path):
    """Under ZeRO-3 each pass needs all ranks: one that ended before the others would leave them waiting."""
    assert run_ranks(_write_together, 2, str(tmp_path)) == [0, 0]
    assert (tmp_path / "0.json").read_text() == (tmp_path / "1.json").read_text()


def test_drafts_name_the_next_words_and_quote_them():
    """By hand: words in pieces of up to four characters; what the example did is done with another response's words."""
    pieces: list[str] = []

    def spell(words):
        pieces.extend(piece for word in words for piece in re.findall(".{1,4}", word) if piece not in pieces)
        return [tuple(map(pieces.index, re.findall(".{1,4}", word))) for word in words]

    def ids(text):
        return [token for word in spell(re.findall(r' ?"| ?\w+|[^\w ]+', text)) for token in word]

    def guess(drafter, text, length):
        drafter.learn(ids(text))
        return "".join(pieces[token] for token in drafter.guess(length))

    example = 'say "cat yes, seat no, mat yes.", ["cat", "mat"], ["seat"]'
    habits = Habits()
    Drafter(habits, "cat mat", "the cat seat mat", spell, pieces.__getitem__).learn(ids(example))
    drafter = Drafter(habits, "a fox, a den", "the fox quietly left its den", spell, pieces.__getitem__)
    text = 'say "'
    assert guess(drafter, text, 3) == "fox yes,"  # passes over what the example passed over; without a space before it
    text += "fox"
    assert guess(drafter, text, 2) == " yes,"  # a word of the prompt's
    text += " yes, qui"
    assert guess(drafter, text, 1) == "etly"  # the rest of a word
    text += "etly no, its"
    assert guess(drafter, text, 3) == " no, den"
    assert "left" in habits.skipped
    text += ' no, den yes.", ["fox'
    assert guess(drafter, text, 4) == '", "den'  # the next word that was called what this one was
    text += '", "den"], ["'
    assert guess(drafter, text, 9).startswith("quietly")
    assert drafter.guess(0) == []
    assert guess(Drafter(Habits(), "", "", spell, pieces.__getitem__), "cat", 3) == ""


def test_guesses_change_nothing_but_the_number_of_passes():
    """Rows that end early, words the model never saw, and masks behind each guess; token for token.

    Of the strangers a model of 60 k weights writes nonsense; constrained, its spans are quotes all the same.
    """
    folder, known = memorised()
    records = list(known.values())
    texts = ['Quite "new" here, a stranger.', "naïve – 🐶🎉 words\\n", "the the the the"]
    strangers = [{"post": "A stranger’s post, 100 % new.", "generated_summary": text} for text in texts]
    sources = [(SLF5K.prompt(record), SLF5K.response(record)) for record in records + strangers]
    for constrained in ("none", "quotes"):
        written, passes = [], []
        for lookahead in (0, 2, 8):
            bound = RewardModelCritic.load(
                folder, "slf5k", dtype="float32", constrained=constrained, lookahead=lookahead, max_new_tokens=90
            )
            prompts = [bound.prompt.ids(bound.fields(x, y)) for x, y in sources]
            matchers = [bound._matcher(y) for _, y in sources]
            written.append(bound.decoder(prompts, [90] * len(prompts), 4, matchers, sources=sources))
            passes.append(bound.decoder.passes)
        assert written[0] == written[1] == written[2]
        assert passes[0] > passes[1] > passes[2]
    responses = [y for _, y in sources]
    for feedback, response in zip(bound([x for x, _ in sources], responses), responses, strict=True):
        assert all(ground(quote, response) for quote in feedback.good + feedback.poor)


@pytest.mark.parametrize(
    ("text", "closed"),
    [
        ('{"a": 1}', True), ('{"a": "}"', False), ('{"a": "}"}', True), ('{"a": "\\"}"', False),
        ('{"a": "\\\\"}', True), ('{"a": {"b": "{"}', False), ('"}" well: {"a": []}', True), ("}{", False),
    ],
)  # fmt: skip
def test_the_end_of_an_object(text, closed):
    assert closes_object(text) == closed
    assert not any(closes_object(text[:end]) for end in range(len(text)))


@pytest.fixture(scope="module")
def critic():
    folder, _ = memorised()
    return RewardModelCritic.load(folder, "slf5k", dtype="float32", batch_size=4)


def ask(critic, records):
    return critic([SLF5K.prompt(r) for r in records], [SLF5K.response(r) for r in records], records)


def test_a_model_that_knows_its_records_judges_them_as_annotated(critic):
    """Training, saving, loading, prompts, batching, order, stopping and parsing, in one."""
    _, known = memorised()
    records = list(known.values())
    assert ask(critic, records) == [SLF5K.feedback(record) for record in records]
    assert ask(critic, records[::-1]) == [SLF5K.feedback(record) for record in records[::-1]]
    text = critic.write([SLF5K.prompt(records[0])], [SLF5K.response(records[0])])[0]
    assert text == SLF5K.render_feedback(SLF5K.feedback(records[0]))


@pytest.mark.parametrize("lookahead", [0, 8])
def test_the_expected_verdict_is_the_mean_over_how_feedback_may_begin(lookahead):
    """By plain transformers: z's of this model differ first by the digit behind ``Post``."""
    folder, records = memorised()
    description, text = RewardModelDescription.load(folder)
    description.examples.pop()  # else both digits are worth the same
    options = {"expected_verdict": True, "lookahead": lookahead, "batch_size": 3, "dtype": "float32"}
    judge = load_critic(str(folder), SLF5K, described=(description, text), **options)
    posts = [record["post"] for record in records.values()] + ["My dog ate it."]
    summaries = [record["generated_summary"] for record in records.values()] + ["He was hungry."]
    known = [SLF5K.parse_feedback(z) for z in description.examples]
    worth = [
        fmean(SLF5K.verdict(each).value for each in known if each.critique.startswith(f"Post {digit}"))
        for digit in "01"
    ]
    assert worth[0] != worth[1]
    lm, tok = load_model(str(folder), "float32"), tokenizer("byte")
    begun, digits = (tok(part, add_special_tokens=False)["input_ids"] for part in ('{"textual_feedback": "Post ', "01"))
    given = judge(posts, summaries)
    for post, summary, feedback in zip(posts, summaries, given, strict=True):
        ids = [*judge.prompt.ids(judge.fields(post, summary)), *begun]
        with torch.no_grad():
            sure = lm(torch.tensor([ids])).logits[0, -1].softmax(-1)[digits]
        expected = float(sure @ torch.tensor(worth) / sure.sum())
        assert isinstance(feedback, FeedbackError) or feedback.score == pytest.approx(expected, abs=1e-3)
    assert len({feedback.score for feedback in given[:6]}) > 1
    for examples, count in ((description.examples[:1], 1), ([REPLY.replace("Fine", each) for each in "vwxyz"], 5)):
        with pytest.raises(InputError, match=f"begins in {count} ways, which say no verdict"):
            described = replace(description, examples=examples), text
            load_critic(str(folder), SLF5K, described=described, **options)


def test_failures_stay_in_their_place(critic, monkeypatch):
    _, known = memorised()
    good, *others = known.values()
    endless = {**good, "generated_summary": "word " * 900}
    results = ask(critic, [others[0], endless, good])
    assert isinstance(results[1], FeedbackError) and "tokens where 500 fit" in str(results[1])
    assert results[0] == SLF5K.feedback(others[0]) and results[2] == SLF5K.feedback(good)
    assert ask(critic, []) == []
    monkeypatch.setattr(critic, "max_new_tokens", 5)
    (cut,) = ask(critic, [good])
    assert isinstance(cut, FeedbackError) and "cut off" in str(cut)


def test_infer_writes_rows_for_metrics_and_resumes(tmp_path, capsys):
    folder, known = memorised()
    long = {**slf5k_records(3)["t3_2_0"], "generated_summary": "word " * 900, "good_spans": "no list"}
    records = {"t3_long": long, **known}  # annotations are not read here
    files = {"data_path": write(tmp_path, records), "output_path": str(tmp_path / "judged.json")}
    config = InferConfig(model=str(folder), batch_size=4, dtype="float32", **files)
    infer("slf5k", config)
    assert "feedback on 7 responses: 6 readable, 0 not, 1 failed" in capsys.readouterr().out
    rows = load_records(config.output_path, SLF5K)
    assert list(rows) == list(records)
    for record_id, row in rows.items():
        assert {key: row[key] for key in records[record_id]} == records[record_id]
        if record_id == "t3_long":
            assert row["predicted"] is None and "fit" in row["parse_error"] and row["prediction"] == ""
        else:
            assert row["predicted"] == SLF5K.fields.to_dict(SLF5K.feedback(records[record_id]))
            assert row["parse_error"] is None

    journal = tmp_path / "judged.json.journal.jsonl"
    lines = journal.read_text().splitlines()
    journal.write_text("\n".join(lines[:4]) + "\n")
    first = (tmp_path / "judged.json").read_bytes()
    infer("slf5k", config)
    assert (tmp_path / "judged.json").read_bytes() == first
    assert journal.read_text().splitlines()[:4] == lines[:4]
    with pytest.raises(InputError, match="begun with other settings"):
        infer("slf5k", replace(config, max_new_tokens=9))
    shutil.copytree(folder, tmp_path / "retrained")
    config.model, config.output_path = str(tmp_path / "retrained"), str(tmp_path / "again.json")
    infer("slf5k", config)
    weights = load_file(tmp_path / "retrained" / "model.safetensors")
    save_file({name: tensor + 1e-3 for name, tensor in weights.items()}, tmp_path / "retrained" / "model.safetensors")
    save_checksums(tmp_path / "retrained")
    with pytest.raises(InputError, match="begun with other settings"):
        infer("slf5k", config)
    with pytest.raises(InputError, match="--gpu_ids 0,99: this machine has"):
        infer("slf5k", replace(config, output_path=f"{tmp_path}/other.json", gpu_ids="0,99"))


def test_infer_writes_nothing_where_the_server_leaves_and_asks_again_for_what_it_refused_once_told_to(tmp_path, capsys):
    """An output with the records that were asked so far would pass for a reward model that cannot be read.

    A server begun with too short a context answers 400, and is begun again with a longer one.
    """
    short = (400, {}, b'{"error": {"message": "maximum context length is 8 tokens"}}')
    output = tmp_path / "judged.json"

    def leave(body: dict) -> None:
        server.down = len(server.requests) == 2

    refusing = {"raw": lambda body: short if "(0)" in str(body) else None}
    with FaultServer(lambda body: REPLY, on_request=leave, **refusing) as server:
        served = {"base_url": server.url, "concurrency": 1, "retries": 0}
        files = {"data_path": write(tmp_path, slf5k_records(4)), "output_path": str(output)}
        config = InferConfig(model=str(memorised()[0]), **served, **files)
        with pytest.raises(InputError, match=r"in a row failed.* run the same command again"):
            infer("slf5k", config)
        assert not output.exists()
        server.down = False
        for _ in range(2):
            infer("slf5k", config)
        assert capsys.readouterr().out.count("3 failed; --retry_failed asks for them again") == 2
        assert len(server.requests) == 12
        server.raw = lambda body: None
        infer("slf5k", replace(config, retry_failed=True))
        assert "12 readable, 0 not, 0 failed\n" in capsys.readouterr().out and len(server.requests) == 15


def test_infer_pays_once_for_each_reply_of_a_server(tmp_path):
    with FaultServer(lambda body: REPLY) as server:
        files = {"data_path": write(tmp_path, slf5k_records(4)), "output_path": str(tmp_path / "judged.json")}
        model = {"model": tiny_model(tmp_path / "model"), "prompt": "no_cot", "max_new_tokens": 1000}
        address = server.url.replace("http://", "http://me:hunter2@")
        config = InferConfig(base_url=f"{address}#gpt-4o", **model, **files)
        with pytest.raises(InputError, match="in process only"):
            replace(config, gpu_ids="0")
        with pytest.raises(InputError, match=r"--max_cost_usd.* run the same command again"):
            infer("slf5k", replace(config, max_cost_usd=0.0125))
        assert 0 < len(server.requests) < 12
        infer("slf5k", config)
    assert len(server.requests) == 12
    assert "hunter2" not in (tmp_path / "judged.json.journal.jsonl").read_text()


def test_infer_judges_what_training_held_out_and_untrained_models_too(tmp_path):
    folder, known = memorised()
    data = write(tmp_path, known)
    common = {"data_path": data, "output_path": str(tmp_path / "j.json"), "max_new_tokens": 4}
    with pytest.raises(InputError, match="holds none of the records held out"):
        infer("slf5k", InferConfig(model=str(folder), split="validation", **common))
    copy = shutil.copytree(folder, tmp_path / "model")
    about = load_json(copy / "reward_model.json")
    about["data"] |= {"validation_path": "others.json", "validation_ids": list(known)}  # which knows others by these
    save_json(copy / "reward_model.json", about | {"max_length": 9999})
    assert RewardModelCritic.load(copy, "slf5k").max_length == 2048  # the model's positions
    with pytest.raises(InputError, match=r"held out for .*; they are in others\.json"):
        infer("slf5k", InferConfig(model=str(copy), split="validation", **common))
    base = str(folder.parent / "model")
    with pytest.raises(InputError, match="no reward model"):
        infer("slf5k", InferConfig(model=base, **common))
    infer("slf5k", InferConfig(model=base, prompt="no_cot", **common))
    rows = json.loads((tmp_path / "j.json").read_text())
    assert len(rows) == 6 and all(row["predicted"] is None and row["parse_error"] for row in rows.values())


def test_a_models_figures_are_of_the_weights_in_its_folder(tmp_path, capsys):
    """A first step at rate 0 leaves a model that knows its records by heart; the second ruins it."""
    folder, records = memorised()
    every = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
    given = {"model": str(folder), "learning_rate": 1.0, "warmup_steps": 1, "max_steps": 2, "validation_share": 0.5}
    made, moved, data = tmp_path / "made", tmp_path / "moved", write(tmp_path, records)

    def figures(output: Path) -> tuple[int | None, float]:
        config = settings(tmp_path, data, **given, **every, load_best_model_at_end=True, output_dir=str(output))
        train("slf5k", config)
        metrics = RewardModelDescription.load(output, "slf5k")[0].metrics
        (output / "reward_model.json").unlink()  # as if killed right before
        return metrics.get("best_step"), metrics["eval_feedback_parse_rate"]

    assert figures(made) == (1, 1.0)
    assert "weights here" not in (made / "checkpoint-2" / "README.md").read_text()
    shutil.move(made, moved)
    assert figures(moved) == (1, 1.0)
    of_the_best = (moved / "feedback" / "step-000001.jsonl").read_text()
    flip_byte(moved / "checkpoint-1" / "model.safetensors")
    assert figures(moved) == (None, 0.0)
    assert "checkpoint-1, of the lowest validation loss, is lost; the weights are those of step 2" in (
        capsys.readouterr().out
    )
    assert (moved / "feedback" / "step-000001.jsonl").read_text() == of_the_best


ABOUT = {
    "task": "slf5k", "base_model": "m", "prompt_max_length": 9, "max_length": 20, "shorten": "tail",
    "max_new_tokens": 5,
}  # fmt: skip


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"{}", "train the model again"),
        (b"\xff\xfe{", "not UTF-8"),
        (b"[" * 100_000, "too deeply"),
        (json.dumps(ABOUT | {"more": 1}).encode(), "'more'"),
        (json.dumps(ABOUT | {"max_length": "long"}).encode(), "max_length"),
        (json.dumps(ABOUT | {"examples": None}).encode(), "examples"),
    ],
)
def test_a_description_that_is_none_is_named(tmp_path, content, told):
    (tmp_path / "reward_prompt.txt").write_text("Judge ${prompt} and ${response}.\n")
    (tmp_path / "reward_model.json").write_bytes(content)
    with pytest.raises(InputError, match=rf"reward_model\.json: .*{told}"):
        load_critic(str(tmp_path), "slf5k")
