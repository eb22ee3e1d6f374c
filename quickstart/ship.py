"""Copy a reward model's adapter without what can be found elsewhere, in bfloat16: half the size.

python quickstart/ship.py runs/reward_model/reward_model quickstart/reward_model
"""

import argparse
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from text2grad.critics.reward_model.critic import DESCRIPTION_FILE, PROMPT_FILE, RewardModelDescription
from text2grad.errors import command
from text2grad.models import BUILT_IN, base_of, model_path
from text2grad.records import check_folder, load_json, save_json

WEIGHTS, ADAPTER = "adapter_model.safetensors", "adapter_config.json"


@command
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="the reward model's folder")
    parser.add_argument("target", type=Path, help="where its copy goes")
    args = parser.parse_args()
    source, target = args.source, args.target
    RewardModelDescription.load(source, "slf5k")
    check_folder(target)
    target.mkdir(parents=True, exist_ok=True)
    for name in (DESCRIPTION_FILE, PROMPT_FILE):
        shutil.copyfile(source / name, target / name)
    base = base_of(str(source))
    if Path(base) == Path(model_path(BUILT_IN)):
        base = BUILT_IN  # a name that every machine knows, not a folder of this one
    save_json(target / ADAPTER, load_json(source / ADAPTER) | {"base_model_name_or_path": base})
    weights = {name: value.to(torch.bfloat16).contiguous() for name, value in load_file(source / WEIGHTS).items()}
    save_file(weights, target / WEIGHTS, metadata={"format": "pt"})
    (target / WEIGHTS).chmod(0o644)
    print(f"{target / WEIGHTS}: {(target / WEIGHTS).stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
