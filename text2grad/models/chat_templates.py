"""Tokenizers and chat templates come with a model and are programs: each is tried once, in a process with limits.

One that does not end on ordinary text, or takes or writes without measure, is refused. One that does so only on
texts that it chooses is not found.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from text2grad.errors import InputError
from text2grad.prompts import FIXED_DATE

_SECONDS = 5  # of processor time for what ordinary templates need hundredths for, and large tokenizers two seconds
_MEGABYTES = 2048
_LONGEST = 1_000_000  # characters
_REFUSES = 5  # exit code of a template that writes no chat at all
_WORDS = "word " * 4000
_CHATS = [
    [{"role": "user", "content": _WORDS}],
    [{"role": "user", "content": _WORDS}, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "No."}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": _WORDS}],
]
_LIMITS = """
import json, resource, sys
{imports}
job = json.load(sys.stdin)
used = resource.getrusage(resource.RUSAGE_SELF)
seconds = int(used.ru_utime + used.ru_stime) + 1 + job["seconds"]
resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
resource.setrlimit(resource.RLIMIT_DATA, (job["bytes"], job["bytes"]))
"""
_TRY_TEMPLATE = (
    _LIMITS.format(imports="from transformers.utils.chat_template_utils import render_jinja_template")
    + """
refused = []
for chat in job["chats"]:
    try:
        texts, _ = render_jinja_template(
            [chat], chat_template=job["template"], add_generation_prompt=True, **job["variables"]
        )
    except MemoryError:
        sys.exit(3)
    except Exception as error:
        refused.append(str(error))
        continue
    if len(texts[0]) > job["longest"]:
        sys.exit(4)
if len(refused) == len(job["chats"]):
    print(refused[0][:200])
    sys.exit(job["refuses"])
"""
)
_TRY_TOKENIZER = (
    _LIMITS.format(imports="import string\nfrom tokenizers import Tokenizer")
    + """
try:
    tokenizer = Tokenizer.from_file(job["path"])
except Exception:
    sys.exit()  # whoever loads it is told
tokenizer.encode(string.printable * 200)
"""
)


def check_chat_template(template: str, variables: dict[str, Any], name: str, tried: Path) -> None:
    """Raise ``InputError`` where a template of the model ``name`` does not write ordinary chats in measure.

    Args:
        variables: what it may use, such as ``eos_token``.
        tried: a folder that remembers which templates passed, where one can be made.
    """
    job = {
        "template": template, "variables": {**variables, "date_string": FIXED_DATE}, "chats": _CHATS,
        "longest": _LONGEST, "refuses": _REFUSES,
    }  # fmt: skip
    done = _tried(_TRY_TEMPLATE, job, json.dumps(job).encode(), tried)
    remedy = "correct chat_template in its tokenizer's files"
    if done and done.returncode == _REFUSES:
        reason = " ".join(done.stdout.decode("utf-8", "replace").split())
        raise InputError(f"{name}: its chat template writes no chat ({reason}); {remedy}")
    if done and done.returncode:
        raise InputError(
            f"{name}: its chat template needs more than {_SECONDS} s or {_MEGABYTES} MB, or writes more than "
            f"{_LONGEST} characters, for a chat of {len(_WORDS)}; {remedy}"
        )


def check_tokenizer(path: Path, tried: Path) -> None:
    """Raise ``InputError`` where the rules of a ``tokenizer.json`` do not read ordinary text in measure."""
    done = _tried(_TRY_TOKENIZER, {"path": str(path)}, path.read_bytes(), tried)
    if done and done.returncode:
        raise InputError(
            f"{path}: needs more than {_SECONDS} s or {_MEGABYTES} MB for 20000 characters; use another tokenizer"
        )


def _tried(script: str, job: dict[str, Any], content: bytes, tried: Path) -> subprocess.CompletedProcess | None:
    """The process that ran a script; None where the same content passed before."""
    mark = tried / hashlib.sha256(script.encode() + content).hexdigest()[:24]
    if mark.exists():
        return None
    text = json.dumps({**job, "seconds": _SECONDS, "bytes": _MEGABYTES << 20})
    done = subprocess.run([sys.executable, "-c", script], input=text.encode(), capture_output=True, check=False)
    if done.returncode == 0:
        try:
            tried.mkdir(parents=True, exist_ok=True)
            mark.touch()
        except OSError:
            pass  # then it is tried each time
    return done
