"""What DeepSpeed needs to be told before it begins."""

import importlib
import os
import warnings

from text2grad.errors import InputError


def prepare_deepspeed(on_cpu: bool) -> None:
    """To be called before DeepSpeed begins, and before a model is loaded for it.

    On the CPU it compiles a shared-memory collective on first use, which nothing here needs; a run that is killed
    meanwhile leaves a lock behind, and every later run would wait for it without end.

    Raises:
        InputError: no launcher has started this process; DeepSpeed would look for MPI.
    """
    if "LOCAL_RANK" not in os.environ:
        raise InputError("--deepspeed wants a launcher, for one process too: torchrun --nproc_per_node 1 SCRIPT ...")
    # DeepSpeed calls collectives by names that torch has deprecated: one warning per call otherwise.
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
    if on_cpu:
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
        vars(importlib.import_module("deepspeed.comm.torch"))["build_shm_op"] = lambda: None


def begin_deepspeed(on_cpu: bool) -> None:
    """For transformers' trainers: on the CPU they leave the backend open, and ZeRO-3 needs it to load a model."""
    prepare_deepspeed(on_cpu)
    if on_cpu:
        import deepspeed

        deepspeed.init_distributed("gloo")
