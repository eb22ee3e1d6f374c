"""Models: loading and naming them (``loading.py``), answering chats, telling DeepSpeed about them, sampling fast."""

from text2grad.models.adapters import base_model, folded  # noqa: F401 (one place to import them from)
from text2grad.models.loading import (  # noqa: F401 (one place to import them from)
    BUILT_IN,
    PLAIN_CHAT_TEMPLATE,
    DtypeName,
    adapter_config,
    base_of,
    best_device,
    best_dtype,
    card_header,
    card_loading,
    chat_ids,
    check_positions,
    end_token_ids,
    from_hub,
    is_adapter,
    load_model,
    load_tokenizer,
    long_dtype_name,
    merge_adapter,
    model_identity,
    model_path,
    named_dtype,
    parameter_count,
    portable_base_name,
    weights_fingerprint,
    without_cudnn_attention,
)
from text2grad.models.lora import adapting, go_on_with_adapter, lora_config  # noqa: F401 (likewise)
