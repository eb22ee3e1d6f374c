"""Tokenizers and chat templates come with a model and are programs: each is tried once, in a process with limits.

One that does not end on ordinary text, or takes or writes without measure, is refused. One that does so only on
texts that it chooses is not found. The process runs this file as a script, so its head imports the standard library
only.
"""

import hashlib
import json
import resource
import string
import subprocess
import sys
from pathlib import Path
from typing import Any

_SECONDS = 5  # of processor time for what ordinary templates need hundredths for, and large tokenizers two seconds
_MEGABYTES = 2048
_LONGEST = 1_000_000  # characters
_NO_CHAT, _TOO_LONG = 5, 4  # exit codes
_WORDS = "word " * 4000
_CHATS = [
    [{"role": "user", "content": _WORDS}],
    [{"role": "user", "content": _WORDS}, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "No."}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": _WORDS}],
]


def check_chat_template(template: str, variables: dict[str, Any], name: str, tried: Path) -> None:
    """Raise ``InputError`` where a template of the model ``name`` does not write ordinary chats in measure.

    Args:
        variables: what it may use, such as ``eos_token``.
        tried: a folder that remembers which templates passed, where one can be made.
    """
    from text2grad.errors import InputError
    from text2grad.prompts import FIXED_DATE

    job = {"template": template, "variables": {**variables, "date_string": FIXED_DATE}}
    done = _tried(job, json.dumps(job).encode(), tried)
    remedy = "correct chat_template in its tokenizer's files"
    if done and done.returncode == _NO_CHAT:
        reason = " ".join(done.stdout.decode("utf-8", "replace").split())
        raise InputError(f"{name}: its chat template writes no chat ({reason}); {remedy}")
    if done and done.returncode:
        raise InputError(
            f"{name}: its chat template needs more than {_SECONDS} s or {_MEGABYTES} MB, or writes more than "
            f"{_LONGEST} characters, for a chat of {len(_WORDS)}; {remedy}"
        )


def check_tokenizer(path: Path, tried: Path) -> None:
    """Raise ``InputError`` where the rules of a ``tokenizer.json`` do not read ordinary text in measure."""
    from text2grad.errors import InputError

    done = _tried({"path": str(path)}, path.read_bytes(), tried)
    if done and done.returncode:
        raise InputError(
            f"{path}: needs more than {_SECONDS} s or {_MEGABYTES} MB for 20000 characters; use another tokenizer"
        )


def _tried(job: dict[str, Any], content: bytes, tried: Path) -> subprocess.CompletedProcess | None:
    """The process that tried it; None where the same content passed before, under the same rules."""
    mark = tried / hashlib.sha256(Path(__file__).read_bytes() + content).hexdigest()[:24]
    if mark.exists():
        return None
    text = json.dumps({**job, "seconds": _SECONDS, "bytes": _MEGABYTES << 20})
    done = subprocess.run([sys.executable, "-P", __file__], input=text.encode(), capture_output=True, check=False)
    if done.returncode == 0:
        try:
            tried.mkdir(parents=True, exist_ok=True)
            mark.touch()
        except OSError:
            pass  # then it is tried each time
    return done


def _limit(job: dict[str, Any]) -> None:
    """From here on: so much processor time and memory, beyond what the imports took."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(used.ru_utime + used.ru_stime) + 1 + job["seconds"]
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_DATA, (job["bytes"], job["bytes"]))


def _try_template(job: dict[str, Any]) -> int:
    from transformers.utils.chat_template_utils import render_jinja_template

    _limit(job)
    refused = []
    for chat in _CHATS:
        try:
            texts, _ = render_jinja_template(
                [chat], chat_template=job["template"], add_generation_prompt=True, **job["variables"]
            )
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 (a template may refuse a kind of chat, a system's turn for one)
            refused.append(str(error))
            continue
        if len(texts[0]) > _LONGEST:
            return _TOO_LONG
    if len(refused) < len(_CHATS):
        return 0
    print(refused[0][:200])
    return _NO_CHAT


def _try_tokenizer(job: dict[str, Any]) -> int:
    from tokenizers import Tokenizer

    _limit(job)
    try:
        tokenizer = Tokenizer.from_file(job["path"])
    except Exception:  # noqa: BLE001 (loading it says what is wrong with the file)
        return 0
    tokenizer.encode(string.printable * 200)
    return 0


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    sys.exit(_try_tokenizer(asked) if "path" in asked else _try_template(asked))
