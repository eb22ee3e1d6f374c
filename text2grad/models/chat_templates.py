"""Chat templates come with a model and are programs: each is tried once, in a process with limits, before it is used.

One that does not end on an ordinary chat, or takes or writes without measure, is refused. One that does so only on
chats that it chooses is not found.
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

_SECONDS = 5  # of processor time, for three chats; ordinary templates need hundredths
_MEGABYTES = 2048
_LONGEST = 1_000_000  # characters
_WORDS = "word " * 4000
_CHATS = [
    [{"role": "user", "content": _WORDS}],
    [{"role": "user", "content": _WORDS}, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "No."}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": _WORDS}],
]
_TRY = """
import json, resource, sys
from transformers.utils.chat_template_utils import render_jinja_template
job = json.load(sys.stdin)
used = resource.getrusage(resource.RUSAGE_SELF)
seconds = int(used.ru_utime + used.ru_stime) + 1 + job["seconds"]
resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
resource.setrlimit(resource.RLIMIT_DATA, (job["bytes"], job["bytes"]))
for chat in job["chats"]:
    try:
        texts, _ = render_jinja_template(
            [chat], chat_template=job["template"], add_generation_prompt=True, **job["variables"]
        )
    except MemoryError:
        sys.exit(3)
    if len(texts[0]) > job["longest"]:
        sys.exit(4)
"""


def check_chat_template(template: str, variables: dict[str, Any], name: str, tried: Path) -> None:
    """Raise ``InputError`` where a template of the model ``name`` does not write ordinary chats in measure.

    Args:
        variables: what it may use, such as ``eos_token``.
        tried: a folder that remembers which templates passed, where one can be made.
    """
    job = {
        "template": template, "variables": {**variables, "date_string": FIXED_DATE}, "chats": _CHATS,
        "seconds": _SECONDS, "bytes": _MEGABYTES << 20, "longest": _LONGEST,
    }  # fmt: skip
    text = json.dumps(job)
    mark = tried / hashlib.sha256(text.encode()).hexdigest()[:24]
    if mark.exists():
        return
    done = subprocess.run([sys.executable, "-c", _TRY], input=text.encode(), capture_output=True, check=False)
    if done.returncode not in (0, 1):  # 1: it refuses such a chat, which whoever writes one is told
        raise InputError(
            f"{name}: its chat template needs more than {_SECONDS} s or {_MEGABYTES} MB, or writes more than "
            f"{_LONGEST} characters, for a chat of {len(_WORDS)}; correct chat_template in its tokenizer's files"
        )
    try:
        tried.mkdir(parents=True, exist_ok=True)
        mark.touch()
    except OSError:
        pass  # then it is tried each time
