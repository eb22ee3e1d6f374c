"""Which model a name or an adapter's folder means, here and on another machine."""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gguf import GGUFWriter
from peft import AutoPeftModelForCausalLM, LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from tokenizers.processors import TemplateProcessing

from nl_gradient_policy_optimization.baselines.scalar_model import load_classifier
from nl_reward_model.merge_lora import MergeConfig, merge
from tests.processes import flip_byte, free_port, run_command
from tests.tiny import adapted, tiny_model, tokenizer
from text2grad.errors import InputError
from text2grad.journal.checksums import save_checksums
from text2grad.models import (
    BUILT_IN,
    base_of,
    chat_ids,
    folded,
    go_on_with_adapter,
    load_model,
    load_tokenizer,
    merge_adapter,
    model_path,
    portable_base_name,
)


def adapter(folder: Path, base: str) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base}))
    return str(folder)


def test_plain_peft_loads_an_adapter_by_the_portable_name(tmp_path, monkeypatch):
    """A relative path would be looked up from whatever folder the next program runs in."""
    tiny_model(tmp_path / "base")
    monkeypatch.chdir(tmp_path)
    model = get_peft_model(load_model("base", "float32"), LoraConfig(target_modules=["q_proj"]))
    assert not torch.backends.cuda.cudnn_sdp_enabled()  # its gradients are NaN at some lengths
    model.peft_config["default"].base_model_name_or_path = portable_base_name("base")
    model.save_pretrained("adapter")
    monkeypatch.chdir("/")
    assert AutoPeftModelForCausalLM.from_pretrained(str(tmp_path / "adapter"))
    assert portable_base_name("owner/name") == "owner/name"


def test_an_adapter_on_the_built_in_model_is_found_on_another_machine(tmp_path):
    name = Path(portable_base_name(BUILT_IN))
    assert name.is_absolute() and str(name) == model_path(BUILT_IN)
    there = adapter(tmp_path / "a", f"/home/somebody/.cache/text2grad/{name.name}")
    assert base_of(there) == BUILT_IN
    assert base_of(adapter(tmp_path / "a", str(name))) == str(name)
    with pytest.raises(InputError, match="/home/somebody/model is not on this machine"):
        base_of(adapter(tmp_path / "a", "/home/somebody/model"))


def test_weights_are_read_again_where_their_size_or_time_has_changed(tmp_path):
    """Each use of a model's name in a command would read all of its weights, else."""
    folder = tiny_model(tmp_path / "model")
    save_checksums(folder)
    weights = tmp_path / "model" / "model.safetensors"
    time = weights.stat().st_mtime_ns
    assert model_path(folder) == folder
    flip_byte(weights)
    os.utime(weights, ns=(time, time))
    assert model_path(folder) == folder
    weights.touch()
    with pytest.raises(InputError, match="is damaged"):
        model_path(folder)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"{", "cannot be read"),
        (b"[]", "names no base model"),
        (b'{"base_model_name_or_path": 3}', "names no base model"),
        (b"[" * 100_000, "nests"),
    ],
)
def test_a_broken_adapter_config_is_named(tmp_path, content, told):
    (tmp_path / "adapter_config.json").write_bytes(content)
    with pytest.raises(InputError, match=rf"adapter_config.json: .*{told}"):
        base_of(str(tmp_path))


@pytest.mark.parametrize("content", [b"{", b'{"peft_type": "IA3", "base_model_name_or_path": "m"}'])
def test_what_is_no_lora_adapter_does_not_go_on_training(tmp_path, content):
    (tmp_path / "adapter_config.json").write_bytes(content)
    with pytest.raises(InputError, match=f"{tmp_path}: cannot be loaded"):
        go_on_with_adapter(SimpleNamespace(model=str(tmp_path), lora_r=16))


def test_an_adapter_of_itself_is_refused(tmp_path):
    with pytest.raises(InputError, match="names the adapter itself"):
        base_of(adapter(tmp_path / "a", str(tmp_path / "a" / ".." / "a")))
    adapter(tmp_path / "b", str(tmp_path / "a"))
    with pytest.raises(InputError, match="names the adapter itself"):
        base_of(adapter(tmp_path / "a", str(tmp_path / "b")))


def test_a_models_own_code_is_refused_without_a_question(tmp_path, monkeypatch):
    """On a terminal transformers would ask, and wait."""
    folder = Path(tiny_model(tmp_path / "model"))
    about = json.loads((folder / "config.json").read_text())
    about |= {"model_type": "unheard-of", "auto_map": {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.M"}}
    (folder / "config.json").write_text(json.dumps(about))
    (folder / "code.py").write_text("raise SystemExit('it ran')")
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("it asked"))
    for load in (load_model, lambda name: load_classifier(name, torch.float32)):
        with pytest.raises(InputError, match="brings its own code"):
            load(str(folder))


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("config.json", {"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ("config.json", {"num_hidden_layers": -1}, "num_hidden_layers"),
        ("config.json", {"hidden_size": "wide"}, "cannot be loaded"),
        ("tokenizer.json", b'{"version": 3}', "cannot be loaded"),
        *(("model.safetensors", content, "cannot be loaded") for content in (b"", b"\x80\x04.", b"{" * 1000)),
    ],
)
def test_a_hostile_model_is_refused_in_one_sentence(tmp_path, name, content, told):
    folder = Path(tiny_model(tmp_path / "model"))
    path = folder / name
    if isinstance(content, dict):  # what changes
        content = json.dumps(json.loads(path.read_text()) | content).encode()
    path.write_bytes(content)
    with pytest.raises(InputError, match=told):
        load_tokenizer(str(folder))
        load_model(str(folder), torch.float32)


@pytest.mark.parametrize("content", [b"no model", b"GGUF\x03\0\0\0"], ids=["other", "cut off"])
def test_a_file_that_is_no_gguf_is_refused_in_one_sentence(tmp_path, monkeypatch, content):
    monkeypatch.setenv("TEXT2GRAD_CACHE", str(tmp_path / "cache"))
    (tmp_path / "model.gguf").write_bytes(content)
    with pytest.raises(InputError, match=r"model\.gguf: cannot be loaded .*download the model again"):
        load_model(str(tmp_path / "model.gguf"))
    assert not list((tmp_path / "cache").iterdir())


def test_a_base_model_gets_the_token_that_begins_a_text(tmp_path):
    tok = tokenizer.__wrapped__("byte")  # one of its own, not that of all tests
    tok.chat_template = None
    chat = [{"role": "user", "content": "Hi."}]
    for kind, begins in (("plain", []), ("begun", [tok.bos_token_id])):
        if begins:
            template = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", tok.bos_token_id)])
            tok.backend_tokenizer.post_processor = template
        (Path(tiny_model(tmp_path / kind)) / "chat_template.jinja").unlink()
        tok.save_pretrained(tmp_path / kind)
        ids = chat_ids(chat, load_tokenizer(str(tmp_path / kind)))
        assert ids == [*begins, *tok("Hi.\n\n", add_special_tokens=False)["input_ids"]]


@torch.no_grad()
def test_an_adapter_on_an_adapter_keeps_both(tmp_path):
    model, ids = load_model(tiny_model(tmp_path / "base"), "float32"), torch.arange(4, 30)[None]
    for name, under in (("lower", "base"), ("upper", "lower")):
        model = adapted(model)
        model.peft_config["default"].base_model_name_or_path = str(tmp_path / under)
        model.save_pretrained(tmp_path / name)
        model = model.merge_and_unload().eval()
    tokenizer().save_pretrained(tmp_path / "upper")
    merge_adapter(str(tmp_path / "upper"), tmp_path / "whole")
    for name, near in (("upper", 1e-4), ("whole", 2e-2)):
        found = load_model(str(tmp_path / name), "float32")(ids).logits
        torch.testing.assert_close(found, model(ids).logits, atol=near, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("end", ["lm_head", "embed_tokens"])
def test_an_adapter_on_one_end_of_a_shared_vocabulary_stays_there(tmp_path, end):
    base = tiny_model(tmp_path / "base", tie_word_embeddings=True)
    made = get_peft_model(load_model(base, "float32"), LoraConfig(r=4, target_modules=["q_proj", end]))
    for name, weight in made.named_parameters():
        if "lora" in name:
            torch.nn.init.normal_(weight, std=0.2)
    made.save_pretrained(tmp_path / "adapter")
    ids = torch.arange(4, 30)[None]
    expected = made.eval()(ids).logits
    found = folded(load_model(str(tmp_path / "adapter"), "float32"))
    torch.testing.assert_close(found(ids).logits, expected, atol=1e-4, rtol=0)
    found.save_pretrained(tmp_path / "whole")
    torch.testing.assert_close(load_model(str(tmp_path / "whole"), "float32")(ids).logits, expected, atol=1e-4, rtol=0)


def test_weights_that_a_folder_lacks_are_not_drawn_at_random(tmp_path):
    base = tiny_model(tmp_path / "base")
    adapted(load_model(base, "float32")).save_pretrained(tmp_path / "own")
    path = tmp_path / "own" / "adapter_model.safetensors"
    save_file({name: weight for name, weight in load_file(path).items() if ".0." not in name}, path)
    with pytest.raises(InputError, match=r"own: cannot be loaded .*missing adapter keys"):
        load_model(str(tmp_path / "own"))
    with pytest.raises(InputError, match="is damaged, or does not fit its base"):
        merge(MergeConfig(str(tmp_path / "own"), str(tmp_path / "whole")))
    path = Path(base) / "model.safetensors"
    save_file({name: weight for name, weight in load_file(path).items() if "layers.1.mlp.up" not in name}, path)
    with pytest.raises(InputError, match=r"base: lacks weights \(model.layers.1.mlp.up_proj.weight\)"):
        load_model(base)


def test_a_gguf_file_that_scales_positions_is_refused(tmp_path, monkeypatch):
    """Llama 3.1's, say: transformers would read it as a model of other positions."""
    monkeypatch.setenv("TEXT2GRAD_CACHE", str(tmp_path / "cache"))
    for name in ("linear", "llama3"):
        file = GGUFWriter(tmp_path / f"{name}.gguf", "llama")
        if name == "linear":
            file.add_string("llama.rope.scaling.type", "linear")
        file.add_tensor("rope_freqs.weight" if name == "llama3" else "other", np.ones(8, np.float32))
        file.write_header_to_file()
        file.write_kv_data_to_file()
        file.write_tensors_to_file()
        file.close()
        with pytest.raises(InputError, match=f"{name}.gguf: scales positions"):
            load_model(str(tmp_path / f"{name}.gguf"))


def test_a_model_that_can_think_first_answers_at_once_and_a_template_that_refuses_a_chat_is_told(tmp_path):
    tokens = load_tokenizer(tiny_model(tmp_path / "model"))
    chat = [{"role": "user", "content": "Hi."}]
    tokens.chat_template = "A:{% if enable_thinking is defined and not enable_thinking %}!{% endif %}"
    assert tokens.decode(chat_ids(chat, tokens)).endswith("A:!")
    tokens.chat_template = "{{ raise_exception('never') }}"
    with pytest.raises(InputError, match=r"model: its chat template refuses a chat .*never"):
        chat_ids(chat, tokens)


BEGIN = """
from text2grad.models.deepspeed_setup import prepare_deepspeed
prepare_deepspeed(on_cpu=True)
import deepspeed
deepspeed.init_distributed("gloo")
print(deepspeed.comm.get_world_size())
"""


def test_a_killed_runs_lock_stops_nobody(tmp_path):
    """The lock is the one that torch's compiler of extensions leaves behind."""
    folder = tmp_path / "deepspeed_shm_comm"
    folder.mkdir()
    (folder / "lock").touch()
    variables = {"TORCH_EXTENSIONS_DIR": str(tmp_path), "DS_ACCELERATOR": "cpu", "MASTER_ADDR": "127.0.0.1"}
    variables |= {"MASTER_PORT": str(free_port()), "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    assert run_command(sys.executable, "-c", BEGIN, **variables).stdout.split()[-1] == "1"
