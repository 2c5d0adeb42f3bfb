"""A transformers model as the runtime uses it: facts, caches, forward passes and encoding at explicit position IDs.

All code that depends on transformers is in this room. This file does not depend on schemas or plans.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from torch.amp import is_autocast_available
from transformers import GenerationMixin, PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from promptcache.attention import Kernels, asked_kernels, to_device
from promptcache.diagnostics import ModelChanged, NotFinite, UnsupportedModel, first_line, shown, whole
from promptcache.kv import KVShape
from promptcache.model.facts import MODEL_FAULTS, Facts, check_loaded, check_mode, is_quantized, read_facts
from promptcache.model.fingerprint import model_fingerprint
from promptcache.model.guard import ModelGuard
from promptcache.model.hook import install_attention
from promptcache.model.packed import pack_linears
from promptcache.model.positioned_cache import watch_positions
from promptcache.model.relocation import Relocation, read_relocation

_LONGEST_DEFAULT = 1 << 17
_LENGTH = whole(1, unit="positions")


class Model:
    """A causal language model of transformers, ready to encode and to link.

    Attributes:
        hf: The transformers model. It is changed in place: length-dependent RoPE is pinned, its attention is replaced,
            and its outputs have names.
        facts: Facts from its configuration.
        context_length: Number of positions that may be used.
        shape: Shape of the KV of one token.
        num_known_tokens: Token IDs below this number have an embedding.
        guard: Notices that the model was changed. It is asked before each forward pass.
        takes_logits_to_keep: Whether `forward` of the transformers model computes logits of some tokens only.
        kernels: The kernels of its attention on a GPU; None before they are chosen, when the Triton kernels compute
            where they run.
    """

    def __init__(self, hf: PreTrainedModel, *, context_length: int | None = None) -> None:
        """Prepare a loaded model.

        Args:
            context_length: Number of positions to use; None uses all that the model declares.
        """
        self.kernels: Kernels | None = asked_kernels()
        check_loaded(hf)
        hf.eval()  # type: ignore[no-untyped-call] # torch does not annotate it
        check_mode(hf)
        for part in hf.modules():
            if isinstance(part, PreTrainedModel):
                part.config.return_dict = True  # in transformers 5.23, most models read the layers' output by name
        self.hf: Any = hf
        self.facts: Facts = read_facts(hf)
        (_LENGTH | None).check("context_length", context_length, UnsupportedModel)
        longest = self.facts.max_positions or _LONGEST_DEFAULT
        if context_length is not None and context_length > longest:
            raise UnsupportedModel(
                f"context_length={shown(context_length)}: {self.facts.name} has {longest} positions; a model with more "
                "positions declares them in its configuration (max_position_embeddings)"
            )
        self.context_length = longest if context_length is None else context_length
        self._regime = _pin_rope(hf, self.context_length)
        # Layers of bitsandbytes reorder their weights in a forward pass, and a state dict undoes this.
        self._fingerprint = model_fingerprint(hf, self._regime) if is_quantized(hf) else None
        self.shape = self._probe()
        embeddings: Any = hf.get_input_embeddings()
        self.num_known_tokens: int = embeddings.num_embeddings
        install_attention(hf, "sdpa" if self.hf._supports_sdpa and not self.facts.softcap else "eager")
        watch_positions(hf)
        self.guard = ModelGuard(hf)
        self._relocation: Relocation | str | None = None  # or the reason why there is none
        self.takes_logits_to_keep = "logits_to_keep" in inspect.signature(type(hf).forward).parameters

    @property
    def end_ids(self) -> tuple[int, ...]:
        """The tokens that end an answer according to the generation configuration."""
        configured: Any = getattr(self.hf.generation_config, "eos_token_id", None)
        return (configured,) if isinstance(configured, int) else tuple(configured or ())

    @property
    def device(self) -> torch.device:
        """The device of the model's inputs."""
        device: torch.device = self.hf.device
        return device

    def check_unchanged(self) -> None:
        """Check that the model is as it was when this object was made. It takes microseconds.

        Raises:
            ModelChanged: It has other adapters, hooks, functions or weights, is in training mode, or compiled.
        """
        self.guard.check(numbers=True)

    def is_unchanged(self) -> bool:
        """Whether the model is as it was when this object was made."""
        try:
            self.check_unchanged()
        except ModelChanged:
            return False
        return True

    @property
    def name(self) -> str:
        """The hub id that it was loaded by, the end of the path of its folder, or its type and class."""
        loaded = str(getattr(self.hf, "name_or_path", ""))
        return "/".join(Path(loaded).parts[-2:]) or self.facts.name

    @property
    def fingerprint(self) -> str:
        """Digest of everything that the KV of this model depends on, as far as it can be read.

        The first use reads all weights.

        Raises:
            ModelChanged: As for `check_unchanged`.
        """
        if self._fingerprint is None:
            self.check_unchanged()
            made = model_fingerprint(self.hf, self._regime)
            self.check_unchanged()
            self._fingerprint = made
        return self._fingerprint

    def pack_weights(self, pack: bool | None) -> None:
        """Reorder the weights of linear layers for a CPU's kernels, if they are on one. They lose their gradients.

        Args:
            pack: None packs the layers for which it pays, True all layers, and False none.
        """
        if pack is not False and self.device.type == "cpu":
            self.check_unchanged()
            pack_linears(self.hf, every=pack is True)
            self.guard = ModelGuard(self.hf)

    @property
    def can_relocate(self) -> bool:
        """Whether keys can be moved to other positions, as `relocation` does."""
        try:
            return bool(self.relocation.layers)
        except UnsupportedModel:
            return False

    @property
    def relocation(self) -> Relocation:
        """The function that moves keys to other positions.

        The first use costs one forward pass over 16 tokens.

        Raises:
            UnsupportedModel: The model uses positions outside of rotary embeddings; gives the reason.
        """
        if self._relocation is None:
            try:
                self._relocation = read_relocation(self)
            except UnsupportedModel as refusal:
                self._relocation = str(refusal)
        if isinstance(self._relocation, str):
            raise UnsupportedModel(self._relocation)
        return self._relocation

    def check_vocabulary(self, token_ids: Sequence[int]) -> None:
        """Refuse token IDs beyond the vocabulary; on a GPU they would make the device unusable.

        Raises:
            UnsupportedModel: Names the token.
        """
        if max(token_ids, default=0) >= self.num_known_tokens:
            raise UnsupportedModel(
                f"{self.facts.name} has {self.num_known_tokens} tokens, and its tokenizer returned token "
                f"{max(token_ids)}: the tokenizer belongs to another model"
            )

    def not_finite(self, what: str) -> NotFinite:
        """Return the error for numbers of this model that are not finite."""
        is_half = self.shape.dtype is torch.float16
        fix = "load it in bfloat16 or float32, with dtype=…" if is_half else "check its weights"
        return NotFinite(f"{self.facts.name} computes {what} as infinities or NaN: {fix}")

    def forward(
        self,
        token_ids: torch.Tensor,
        position_ids: torch.Tensor,
        cache: Cache,
        mask: torch.Tensor | None = None,
        *,
        keep: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Run the whole model over new tokens and return their logits.

        Args:
            token_ids: `[B, T]`.
            position_ids: `[B, T]`.
            cache: It grows by T tokens.
            mask: For plain caches, the result of `attention_masks`.
            keep: Indices `[K]` of the tokens whose logits are wanted; None means all.

        Returns:
            `[B, T, V]`, or `[B, K, V]` in the order of `keep`.

        Raises:
            ModelChanged: As for `check_unchanged`.
        """
        chosen = {} if keep is None or not self.takes_logits_to_keep else {"logits_to_keep": keep}
        self.guard.check()
        with self.without_autocast():
            output = self.hf(
                input_ids=token_ids,
                position_ids=position_ids,
                past_key_values=cache,
                attention_mask=mask,
                use_cache=True,
                **chosen,
            )
        logits: torch.Tensor = output.logits
        return logits if keep is None or chosen else logits[:, keep]

    def encode(self, token_ids: torch.Tensor, position_ids: torch.Tensor, cache: Cache) -> None:
        """Run the layers over new tokens `[B, T]` for their KV only: as `forward`, without the output layer."""
        self.guard.check()
        with self.without_autocast():
            self.hf.base_model(input_ids=token_ids, position_ids=position_ids, past_key_values=cache, use_cache=True)

    def without_autocast(self) -> AbstractContextManager[Any]:
        """Return a context without autocast, in which KV and logits have the dtype that the fingerprint states."""
        kind = self.device.type
        return torch.autocast(kind, enabled=False) if is_autocast_available(kind) else nullcontext()

    def attention_masks(self, sees: torch.Tensor, distance: torch.Tensor) -> Any:
        """Return a custom mask in the form that this model takes, with sliding windows applied by position.

        Args:
            sees: Bool `[T, S]`, True where a query may attend to a key.
            distance: `[T, S]`, position of the query minus position of the key.

        Returns:
            An additive mask `[1, 1, T, S]`, or a dict with one for each type of layer.
        """
        window = self.facts.window
        full = self._additive(sees)
        if window is None:
            return full
        windowed = self._additive(sees & (distance < window))
        try:  # no flag says whether a model takes one mask for each type of layer, so its source is read
            takes_types = "causal_mask_mapping" in inspect.getsource(type(self.hf.base_model).forward)
        except OSError:  # a class without a source file
            takes_types = False
        if takes_types:
            return {"full_attention": full, "sliding_attention": windowed}
        if None in self.facts.windows:
            raise UnsupportedModel(f"{self.facts.name} has windowed and full layers but takes only one mask")
        return windowed

    def _additive(self, sees: torch.Tensor) -> torch.Tensor:
        low = torch.finfo(self.hf.dtype).min
        mask = torch.zeros(sees.shape, dtype=self.hf.dtype, device=self.device)
        return mask.masked_fill_(~sees.to(self.device), low)[None, None]

    def _probe(self) -> KVShape:
        cache = self.plain_cache(len(self.facts.windows))
        token = torch.zeros((1, 1), dtype=torch.long, device=self.device)
        try:
            with torch.no_grad(), self.without_autocast():
                self.hf(input_ids=token, position_ids=token, past_key_values=cache, use_cache=True)
        except MODEL_FAULTS as error:
            raise UnsupportedModel(
                f"{self.facts.name}: its own forward pass fails: {first_line(error)}{_mixture(self.hf)}"
            ) from error
        layers: Sequence[Any] = cache.layers
        tensors = [tensor for layer in layers for tensor in (layer.keys, layer.values)]
        shapes = {None if tensor is None else (*tensor.shape, tensor.dtype) for tensor in tensors}
        first = next(iter(shapes))
        device = None if tensors[0] is None else tensors[0].device
        if first is None or device is None:
            raise UnsupportedModel(
                f"{self.facts.name} does not write its keys and values to the cache that is passed to it"
            )
        if len(shapes) != 1 or len(first) != 5:
            raise UnsupportedModel(
                f"{self.facts.name} has keys and values of different shapes; all of them must have one shape "
                "[heads, tokens, width]"
            )
        _, heads, _, width, dtype = first
        return KVShape(num_layers=len(cache.layers), num_kv_heads=heads, head_dim=width, dtype=dtype, device=device)

    @staticmethod
    def plain_cache(num_layers: int) -> Cache:
        """Return an empty cache of plain layers. The model's own choice would drop tokens beyond a sliding window."""
        layers: list[Any] = [DynamicLayer() for _ in range(num_layers)]  # type: ignore[no-untyped-call] # not annotated
        return Cache(layers=layers)


def as_model(model: PreTrainedModel | Model, context_length: int | None) -> Model:
    """Return our model around a transformers model. Our own models are returned as they are.

    Raises:
        UnsupportedModel: `model` is neither, or it is ours with another context length.
        ModelChanged: It is ours, and its model was changed since it was made.
    """
    if not isinstance(model, Model):
        return Model(model, context_length=context_length)
    (_LENGTH | None).check("context_length", context_length, UnsupportedModel)
    if context_length not in (None, model.context_length):
        raise UnsupportedModel(
            f"this Model was made for {model.context_length} positions, not {shown(context_length)}; "
            "pass context_length when you make the Model"
        )
    model.check_unchanged()
    return model


def _pin_rope(model: Any, context_length: int) -> str:
    """Fix rotary frequencies of a model that depend on the length at those for `context_length` positions, in place.

    With dynamic NTK and longrope scaling the stock frequencies depend on the input, so the KV of a module would depend
    on its neighbours and on earlier calls (transformers 5.23, `modeling_rope_utils.dynamic_rope_update`).

    Returns:
        The regime, for the fingerprint; "" if no frequency depends on the length.
    """
    regimes = set[str]()
    for rotary in [each for each in model.modules() if hasattr(each, "rope_type")]:
        pinned: tuple[str, int] | None = getattr(rotary, "_promptcache_pinned", None)
        if pinned is None:
            kind = rotary.rope_type
            kinds = kind.values() if isinstance(kind, dict) else (kind,)
            if not any("dynamic" in each or each == "longrope" for each in kinds):
                continue
            if isinstance(kind, dict):
                raise UnsupportedModel(
                    f"{type(rotary).__name__} scales RoPE by length in some layers only ({kind}): not supported"
                )
            device = rotary.inv_freq.device
            frequencies, scaling = ROPE_INIT_FUNCTIONS[kind](rotary.config, device, seq_len=context_length)
            rotary.register_buffer("inv_freq", frequencies, persistent=False)
            rotary.attention_scaling = scaling
            rotary.rope_type = "pinned"
            pinned = rotary._promptcache_pinned = (kind, context_length)
        kind, length = pinned
        if length != context_length:
            raise UnsupportedModel(
                f"the model's {kind} RoPE is pinned at {length} positions by another engine; load the model again to "
                f"use {context_length}"
            )
        regimes.add(f"{kind} rope pinned at {length}")
    if regimes:  # `generate` does not drop the cache where the stock frequencies would change, as it does for Phi-3
        model.prepare_inputs_for_generation = MethodType(GenerationMixin.prepare_inputs_for_generation, model)
    return "; ".join(sorted(regimes))


def _mixture(hf: PreTrainedModel) -> str:
    """Return the fix for weights of several dtypes or on several devices; "" if there is only one of each."""
    weights = [weight for weight in hf.parameters() if weight.is_floating_point()]
    dtypes = sorted({str(weight.dtype).removeprefix("torch.") for weight in weights})
    devices = sorted({str(weight.device) for weight in weights})
    if len(dtypes) > 1:
        return f"; its weights are of several dtypes ({', '.join(dtypes)}): give them one with model.to(dtype)"
    if len(devices) > 1:
        return f"; its weights are on several devices ({', '.join(devices)}): move them to one with model.to(device)"
    return ""


def token_tensor(token_ids: Sequence[int], device: torch.device) -> torch.Tensor:
    """Return token or position IDs as a batch of one, `[1, T]`."""
    return to_device(torch.tensor([list(token_ids)], dtype=torch.long), device)
