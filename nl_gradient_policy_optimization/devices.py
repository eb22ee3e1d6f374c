"""What several processes need to agree on before they begin: how long to wait, how to shard, where to write."""

import math
import os
import socket
import time
import uuid
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from accelerate.utils import InitProcessGroupKwargs

from nl_gradient_policy_optimization.config import PolicyConfig
from text2grad.critics import is_served
from text2grad.endpoints import is_endpoint
from text2grad.errors import InputError

PATIENCE = timedelta(minutes=30)
"""How long ranks wait for each other beside the critic's waits. NCCL's own limit is ten minutes."""
_FOLDER_SECONDS = 30.0
"""Network file systems show a new file late."""
_KEPT: list[dist.ProcessGroup | None] = []


def process_group(config: PolicyConfig, deepspeed_on_cpu: bool) -> InitProcessGroupKwargs:
    """Ranks wait for each other for longer than the critic of one of them can take."""
    timeout = PATIENCE + timedelta(seconds=longest_critique(config))
    return InitProcessGroupKwargs(**({"backend": "gloo"} if deepspeed_on_cpu else {}), timeout=timeout)


def keep_process_group() -> None:
    """Hold the process group until this process ends, so that no model that is freed was the last to hold it.

    Else its destructor would wait, with Python's lock, for a thread of Gloo's that needs the lock to free a tensor.
    """
    if dist.is_initialized():
        _KEPT.append(dist.group.WORLD)


def longest_critique(config: PolicyConfig) -> float:
    """Seconds that an endpoint may take for a rank's rollouts, every request repeated as often as allowed.

    Each vote on a rollout takes up to two requests: a reply that cannot be read is asked for again.
    """
    asked = ((config.critic, config.critic_votes), (config.audit_critic, 1))  # one after the other
    opinions = sum(count for spec, count in asked if is_endpoint(spec) or is_served(spec))
    if not opinions:
        return 0.0
    from text2grad.endpoints.client import longest_request

    rounds = math.ceil(config.rollouts_per_device / config.critic_concurrency)
    return opinions * 2 * rounds * longest_request(config.critic_timeout, config.critic_retries)


def check_sharding(optimizer: str, deepspeed: str) -> None:
    """Refuse an optimiser whose update depends on the weights' shapes where they are flattened."""
    if optimizer == "adafactor" and deepspeed:
        raise InputError(
            f"--deepspeed {deepspeed}: DeepSpeed flattens the weights. Adafactor scales by rows, columns and the norm "
            "of each weight, so it would make other updates than on one device; leave out --optimizer, or "
            "--deepspeed"
        )


def check_fsdp() -> None:
    """Refuse FSDP, which ``accelerate launch`` announces in a variable; on a CPU it would be ignored instead."""
    if os.environ.get("ACCELERATE_USE_FSDP", "false") == "true":
        raise InputError(
            "accelerate's config asks for FSDP, but rollouts and checkpoints know whole weights and DeepSpeed's shards "
            "only; run without it (DDP), or with --deepspeed nl_gradient_policy_optimization/deepspeed/zero3.json"
        )


def check_shared_folder(folder: str | Path) -> None:
    """All ranks see one folder: checkpoints are written by rank 0 and some parts by every rank, and read by all.

    Raises:
        InputError: on every rank, with the machines that do not see what rank 0 writes.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return
    names = [f".shared-{uuid.uuid4().hex}"]
    if dist.get_rank() == 0:
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / names[0]).touch()
    dist.broadcast_object_list(names)
    mark, end = Path(folder) / names[0], time.monotonic() + _FOLDER_SECONDS
    one_machine = dist.get_world_size() == int(os.environ.get("LOCAL_WORLD_SIZE", 0))
    while not (mark.exists() or one_machine or time.monotonic() > end):
        time.sleep(0.5)
    seen: list[tuple[bool, str]] = [(False, "")] * dist.get_world_size()
    dist.all_gather_object(seen, (mark.exists(), socket.gethostname()))
    if dist.get_rank() == 0:
        mark.unlink()
    blind = sorted({f"{host} (rank {rank})" for rank, (found, host) in enumerate(seen) if not found})
    if blind:
        raise InputError(
            f"{folder}: {', '.join(blind)} do not see what rank 0 on {seen[0][1]} writes there; --output_dir must be "
            "one folder that all machines share"
        )
