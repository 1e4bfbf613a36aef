"""Directories saved by transformers load tensor by tensor; whatever is wrong with one is named."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from flide_engine.models import FullLayer, LinearLayer, Model, ModelError, load_model
from flide_engine.models import digest as digests
from flide_engine.models.config import FULL
from flide_engine.models.qwen3_5 import FUSED, NAMES, PADDING, ROW_PADDING
from safetensors.torch import load_file, save_file
from saved_models import Saved

Save = Callable[..., Saved]


def load(directory: Path, dtype: torch.dtype = torch.float32) -> Model:
    return load_model(str(directory), device="cpu", dtype=dtype)


def compare(model: Model, state: dict[str, torch.Tensor], prefix: str) -> int:
    """Compare every tensor of a model with transformers' state; returns how many there were."""
    pairs = [
        (model.embed, f"{prefix}embed_tokens.weight"),
        (model.norm, f"{prefix}norm.weight"),
        (model.head, "lm_head.weight"),
    ]
    for i, (layer, kind) in enumerate(zip(model.layers, model.config.layer_types, strict=True)):
        assert type(layer) is (FullLayer if kind == FULL else LinearLayer)
        pairs += [(getattr(layer, field), f"{prefix}layers.{i}.{name}") for field, name in NAMES[kind].items()]
    for ours, name in pairs:
        theirs = state[name].squeeze(1) if name.endswith("conv1d.weight") else state[name]
        wanted = theirs.to(torch.float32 if name.endswith(("A_log", "dt_bias")) else model.dtype)
        assert ours.dtype == wanted.dtype, name
        assert torch.equal(ours, wanted), name
    return len(pairs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("size", ["tiny", "tiny6"])
@pytest.mark.parametrize(("kind", "prefix"), [("causal", "model."), ("conditional", "model.language_model.")])
def test_every_tensor_of_both_classes(save: Save, kind: str, prefix: str, size: str, dtype: torch.dtype) -> None:
    saved = save(kind, size)
    model = load(saved.directory, dtype)
    assert model.config == saved.config
    assert not model.untrained
    state = saved.state()
    stored = {name for name in state if not name.startswith("model.visual.")}
    assert compare(model, state, prefix) == len(stored)
    assert (model.head is model.embed) == saved.config.tied
    first = f"{prefix}layers.0.linear_attn.in_proj_z.weight"
    with pytest.raises(AssertionError, match=first.replace(".", r"\.")):
        compare(model, {**state, first: state[first] + 1}, prefix)


def test_float32_decay_of_a_bfloat16_checkpoint(save: Save) -> None:
    saved = save("causal", dtype=torch.bfloat16)
    layer = load(saved.directory, torch.bfloat16).layers[0]
    assert isinstance(layer, LinearLayer)
    assert layer.A_log.dtype == layer.dt_bias.dtype == torch.float32
    assert layer.in_qkv.dtype == torch.bfloat16


def test_shards_and_their_index(save: Save) -> None:
    saved = save("conditional", "tiny6", shard="200KB")
    assert len(list(saved.directory.glob("*.safetensors"))) > 3
    model = load(saved.directory)
    compare(model, saved.state(), "model.language_model.")


def test_digest_is_of_the_values_not_of_the_files(save: Save, tmp_path: Path) -> None:
    saved = save("causal", "tiny6")
    whole = load(saved.directory).digest
    resharded = tmp_path / "resharded"
    saved.module.save_pretrained(resharded, max_shard_size="200KB")
    assert load(resharded).digest == whole
    assert load(resharded, torch.bfloat16).digest == whole
    _change(saved.directory, "model.norm.weight", lambda tensor: tensor + 1)
    assert load(saved.directory).digest != whole


def test_fused_buffers_share_memory(save: Save) -> None:
    model = load(save("causal", "tiny6").directory)
    for layer, kind in zip(model.layers, model.config.layer_types, strict=True):
        for buffer, parts in FUSED[kind].items():
            whole = getattr(layer, buffer)
            assert whole.is_contiguous()
            row = 0
            for part in parts:
                if part == PADDING:
                    padding = whole[row:][: -row % ROW_PADDING]
                    assert not padding.any()
                    row += padding.shape[0]
                    continue
                view = getattr(layer, part)
                assert view.data_ptr() == whole[row:].data_ptr()
                assert view.is_contiguous()
                row += view.shape[0]
            assert row == whole.shape[0]
        if isinstance(layer, LinearLayer):
            first = layer.in_first
            assert first.shape[0] % ROW_PADDING == 0
            assert first.is_contiguous()
            assert first.data_ptr() == layer.in_all.data_ptr()
            assert first.shape[0] + layer.in_z.shape[0] == layer.in_all.shape[0]
            assert layer.in_z.data_ptr() == layer.in_all[first.shape[0] :].data_ptr()


def test_mtp_and_vision_are_ignored(save: Save) -> None:
    saved = save("causal")
    before = load(saved.directory)
    _edit(saved.directory, lambda tensors: tensors.update({"mtp.fc.weight": torch.ones(3), "model.visual.x": torch.ones(2)}))
    after = load(saved.directory)
    compare(after, saved.state(), "model.")
    assert after.digest == before.digest


def test_missing_tensor_is_named(save: Save) -> None:
    saved = save("causal")
    _edit(saved.directory, lambda tensors: tensors.pop("model.layers.1.linear_attn.A_log"))
    with pytest.raises(ModelError, match=r"1 tensors are missing: layers\.1\.linear_attn\.A_log"):
        load(saved.directory)


def test_unexpected_tensor_is_named(save: Save) -> None:
    saved = save("causal")
    _edit(saved.directory, lambda tensors: tensors.update({"model.layers.9.extra": torch.ones(1)}))
    with pytest.raises(ModelError, match=r"do not belong to this architecture: model\.layers\.9\.extra"):
        load(saved.directory)


def test_misshapen_tensor_is_named(save: Save) -> None:
    saved = save("causal")
    _change(saved.directory, "model.layers.3.self_attn.k_proj.weight", lambda tensor: tensor[:-1].contiguous())
    with pytest.raises(ModelError, match=r"k_proj\.weight is \[63, 96\], config\.json asks for \[64, 96\]"):
        load(saved.directory)


def test_integer_tensor_is_named(save: Save) -> None:
    saved = save("causal")
    _change(saved.directory, "model.norm.weight", lambda tensor: tensor.to(torch.int8))
    with pytest.raises(ModelError, match=r"model\.norm\.weight is stored as I8"):
        load(saved.directory)


def test_missing_head_says_what_to_do(save: Save) -> None:
    saved = save("causal", "tiny6")
    _edit(saved.directory, lambda tensors: tensors.pop("lm_head.weight"))
    with pytest.raises(ModelError, match=r"lm_head\.weight; .*tie_word_embeddings"):
        load(saved.directory)


def test_stored_head_beside_tied_embeddings(save: Save) -> None:
    saved = save("causal")
    embed = saved.state()["model.embed_tokens.weight"].clone()
    _edit(saved.directory, lambda tensors: tensors.update({"lm_head.weight": embed}))
    assert load(saved.directory).config.tied
    _edit(saved.directory, lambda tensors: tensors.update({"lm_head.weight": embed + 1}))
    with pytest.raises(ModelError, match="ties the embeddings but"):
        load(saved.directory)


def test_a_shard_that_is_not_there_is_named(save: Save) -> None:
    saved = save("causal", shard="200KB")
    gone = sorted(saved.directory.glob("*.safetensors"))[1]
    gone.unlink()
    with pytest.raises(ModelError, match=gone.name):
        load(saved.directory)


def test_index_cannot_leave_the_directory(save: Save) -> None:
    saved = save("causal")
    outside = saved.directory.parent / "outside.safetensors"
    shutil.copy(saved.directory / "model.safetensors", outside)
    index = {"weight_map": {"model.norm.weight": "../outside.safetensors"}}
    (saved.directory / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match=r"outside\.safetensors, which is not in"):
        load(saved.directory)


@pytest.mark.parametrize("keep", [0, 7, 300, -1])
def test_a_cut_file_is_named(save: Save, keep: int) -> None:
    saved = save("causal")
    file = saved.directory / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(ModelError, match=r"model\.safetensors is no readable safetensors file"):
        load(saved.directory)


def test_no_weights_at_all(save: Save) -> None:
    saved = save("causal")
    (saved.directory / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"holds no \*\.safetensors file"):
        load(saved.directory)


def test_digest_is_cached_by_path_size_and_times(save: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = save("causal")
    first = load(saved.directory).digest
    assert digests.cache_file().is_file()
    with monkeypatch.context() as patched:
        patched.setattr("flide_engine.models.weights.stored_digest", lambda *_: "0" * 64)
        assert load(saved.directory).digest == first
    file = saved.directory / "model.safetensors"
    before = file.stat()
    with file.open("r+b") as opened:  # in place: the same inode and size
        opened.seek(-1, os.SEEK_END)
        last = opened.read(1)[0]
        opened.seek(-1, os.SEEK_END)
        opened.write(bytes([last ^ 1]))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert load(saved.directory).digest != first, "weights written over, their modification time set back"


def test_a_damaged_or_unwritable_cache_is_no_error(save: Save, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    saved = save("causal")
    first = load(saved.directory).digest
    digests.cache_file().write_text("{ not json")
    assert load(saved.directory).digest == first
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    assert load(saved.directory).digest == first


@pytest.mark.parametrize(
    "name", ["no-such-model", "/no/such/dir", "dummy:huge", "dummy:tiny:x", "dummy:tiny:1:2", "../up", "a/b/c", ""]
)
def test_unknown_names(name: str) -> None:
    with pytest.raises(ModelError) as error:
        load_model(name, device="cpu", dtype=torch.float32)
    assert name in str(error.value) or "unknown dummy size" in str(error.value)


def test_unsupported_dtype() -> None:
    with pytest.raises(ModelError, match="float16"):
        load_model("dummy:tiny", device="cpu", dtype=torch.float16)


def test_hub_id_is_downloaded_in_part(save: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = save("causal")
    asked: list[tuple[str, list[str]]] = []

    def download(repo: str, *, allow_patterns: list[str]) -> str:
        asked.append((repo, allow_patterns))
        return str(saved.directory)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    model = load_model("some-org/some-model", device="cpu", dtype=torch.float32)
    assert model.name == "some-org/some-model"
    assert asked[0][0] == "some-org/some-model"
    assert "*.safetensors" in asked[0][1]
    assert not any(pattern in ("*", "*.bin", "*.pt") for pattern in asked[0][1])


def test_offline_hub_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub.errors import LocalEntryNotFoundError

    def download(repo: str, *, allow_patterns: list[str]) -> str:
        raise LocalEntryNotFoundError("cannot find the requested files in the local cache")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    with pytest.raises(ModelError, match=r"(?s)'some-org/some-model'.*could not be fetched.*LocalEntryNotFoundError.*offline"):
        load_model("some-org/some-model", device="cpu", dtype=torch.float32)


def _edit(directory: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    file = directory / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    change(tensors)
    save_file(tensors, file)


def _change(directory: Path, name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    _edit(directory, lambda tensors: tensors.update({name: change(tensors[name])}))
