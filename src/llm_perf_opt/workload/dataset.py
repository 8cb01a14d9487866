"""The samples of a run: found and checked before a model is loaded, and the order in which they are used."""

import hashlib
import json
import os
import random
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_perf_opt.config.schema import DatasetSection, SamplingSection
from llm_perf_opt.core.documents import InputSample
from llm_perf_opt.errors import ConfigError
from llm_perf_opt.system.files import read_limited
from llm_perf_opt.workload.models.base import PageFiles, Sample

PAGES = "pages"
TOKENS = "tokens"
MISSING_SHOWN = 10
HASH_CHUNK_BYTES = 1 << 20
LARGEST_LIST_BYTES = 256 << 20


@dataclass(frozen=True, kw_only=True)
class Planned:
    """One sample at its place in the run."""

    epoch: int
    sample: Sample


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """The token ids a synthetic prompt may use."""

    size: int
    special_ids: frozenset[int]


def list_samples(
    dataset: DatasetSection,
    *,
    data_kind: str,
    vocabulary: Vocabulary | None,
    scratch_dir: Path,
    page_files: PageFiles | None = None,
) -> tuple[Sample, ...]:
    """All samples of the data set, at least one, or a ConfigError; synthetic pages are drawn into `scratch_dir`."""
    if dataset.kind == "synthetic":
        return synthetic_samples(
            dataset, data_kind=data_kind, vocabulary=vocabulary, scratch_dir=scratch_dir, page_files=page_files
        )
    if dataset.kind == "prompts":
        _require_kind(TOKENS, data_kind, dataset.kind)
        return _read_prompts(dataset.file)
    _require_kind(PAGES, data_kind, dataset.kind)
    return _find_pages(dataset)


def plan_samples(samples: Sequence[Sample], sampling: SamplingSection) -> tuple[Planned, ...]:
    """The samples of every epoch: a window that moves on by its own size, or a seeded draw without replacement."""
    count = len(samples)
    size = min(sampling.num_samples_per_epoch or count, count)
    rng = random.Random(sampling.seed)
    planned: list[Planned] = []
    for epoch in range(sampling.num_epochs):
        window = [(epoch * size + i) % count for i in range(size)]
        chosen = rng.sample(range(count), size) if sampling.randomize else window
        planned += [Planned(epoch=epoch, sample=samples[i]) for i in chosen]
    return tuple(planned)


def plan_batches(planned: Sequence[Planned], size: int) -> tuple[Planned, ...]:
    """The same samples, `size` at a time. The last batch is filled from the first samples, so that all are full."""
    if size == 1:
        return tuple(planned)
    count = -(-len(planned) // size)
    filled = [planned[i % len(planned)] for i in range(count * size)]
    return tuple(_batch(filled[i * size : (i + 1) * size]) for i in range(count))


def _batch(members: Sequence[Planned]) -> Planned:
    samples = tuple(member.sample for member in members)
    name = "+".join(sample.sample_id for sample in samples)
    return Planned(epoch=members[0].epoch, sample=Sample(sample_id=name, batch=samples))


def plan_notes(samples: Sequence[Sample], sampling: SamplingSection) -> tuple[str, ...]:
    """What the plan could not do as asked."""
    wanted = sampling.num_samples_per_epoch
    if wanted is None or wanted <= len(samples):
        return ()
    return (f"dataset.sampling.num_samples_per_epoch is {wanted}, the data set has {len(samples)}: all are used",)


def describe_inputs(planned: Sequence[Planned], *, run_dir: Path) -> list[InputSample]:
    """Size and hash of every sample the plan uses, each once. Paths inside the run are relative, so it can be moved."""
    samples = {sample.sample_id: sample for p in planned for sample in p.sample.members}
    return [_describe(sample, run_dir) for sample in samples.values()]


def vocabulary_of(geometry: Mapping[str, Any]) -> Vocabulary:
    """The vocabulary of a text model, from its configuration."""
    for section in (geometry, geometry.get("text_config"), geometry.get("decoder")):
        if isinstance(section, Mapping) and isinstance(section.get("vocab_size"), int):
            return Vocabulary(size=section["vocab_size"], special_ids=_special_ids(geometry, section))
    raise ConfigError("model.geometry: has no vocab_size, which synthetic prompts need (use dataset=prompts)")


def synthetic_samples(
    dataset: DatasetSection,
    *,
    data_kind: str,
    vocabulary: Vocabulary | None,
    scratch_dir: Path,
    page_files: PageFiles | None = None,
) -> tuple[Sample, ...]:
    """Pages or prompts made from `dataset.seed`."""
    ids = [f"synthetic-{i:04d}" for i in range(dataset.num_samples)]
    if data_kind == PAGES:
        if page_files is None:
            raise ConfigError(
                "dataset.kind: the model's adapter draws no synthetic pages (got 'synthetic'), allowed: omnidocbench"
            )
        folder, size = scratch_dir / "pages", {"width": dataset.page_width, "height": dataset.page_height}
        return tuple(
            Sample(sample_id=name, image=page_files.draw(folder / f"{name}.png", seed=f"{dataset.seed}/{name}", **size))
            for name in ids
        )
    if vocabulary is None:
        raise ConfigError("dataset.kind: synthetic prompts need the model's vocabulary size")
    return tuple(
        Sample(sample_id=name, token_ids=random_tokens(vocabulary, dataset.prompt_tokens, f"{dataset.seed}/{name}"))
        for name in ids
    )


def random_tokens(vocabulary: Vocabulary, count: int, seed: str) -> tuple[int, ...]:
    """Token ids drawn evenly from the vocabulary, special ones left out."""
    rng = random.Random(seed)
    usable = [i for i in range(vocabulary.size) if i not in vocabulary.special_ids]
    return tuple(rng.choices(usable, k=count))


def _special_ids(*sections: Mapping[str, Any]) -> frozenset[int]:
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    found: set[int] = set()
    for value in (section[name] for section in sections for name in names if name in section):
        found |= {v for v in (value if isinstance(value, list | tuple) else [value]) if isinstance(v, int)}
    return frozenset(found)


def _require_kind(offered: str, wanted: str, kind: str) -> None:
    if offered != wanted:
        fitting = "synthetic or omnidocbench" if wanted == PAGES else "synthetic or prompts"
        raise ConfigError(f"dataset.kind: holds {offered}, the model reads {wanted} (got {kind!r}), allowed: {fitting}")


def _read_prompts(file: Path | None) -> tuple[Sample, ...]:
    """One prompt a line; in a .jsonl file one object a line with the key `prompt`."""
    if file is None:
        raise ConfigError("dataset.file: needed when dataset.kind is prompts (got None), allowed: a text or JSONL file")
    try:
        lines = read_limited(file, LARGEST_LIST_BYTES).decode("utf-8").split("\n")
    except OSError as error:
        raise ConfigError(
            f"dataset.file: {file} cannot be read ({error.strerror}); give a text or JSONL file"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"dataset.file: {file} is not UTF-8 text ({error.reason} at byte {error.start})") from error
    samples = tuple(
        Sample(sample_id=f"{file.name}:{number}", text=_prompt(line, file, number))
        for number, line in enumerate(lines, start=1)
        if line.strip()
    )
    if not samples:
        raise ConfigError(f"dataset.file: {file} has no prompt in it; write one a line")
    return samples


def _prompt(line: str, file: Path, number: int) -> str:
    if file.suffix != ".jsonl":
        return line
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise ConfigError(f"dataset.file: {file}, line {number}: not JSON ({error.msg})") from error
    except (RecursionError, ValueError) as error:
        raise ConfigError(f"dataset.file: {file}, line {number}: nested too deeply, or a number too long") from error
    if not isinstance(value, dict) or not isinstance(value.get("prompt"), str) or not value["prompt"]:
        raise ConfigError(f'dataset.file: {file}, line {number}: not an object with a text under "prompt"')
    return str(value["prompt"])


def _find_pages(dataset: DatasetSection) -> tuple[Sample, ...]:
    """The pages a list names, or else those that match the patterns."""
    root = dataset.root
    if root is None or not root.is_dir():
        raise ConfigError(
            f"dataset.root: no such folder (got {str(root)!r}), give the folder of OmniDocBench, "
            "or use dataset=synthetic, which needs no files"
        )
    if dataset.subset_filelist is not None:
        listed = _listed_pages(dataset.subset_filelist, root, allow_absolute=dataset.allow_absolute)
        return tuple(_page(path, root) for path in listed)
    found = dict.fromkeys(p for pattern in dataset.fallback_patterns for p in sorted(root.glob(pattern)) if p.is_file())
    if not found:
        patterns = ", ".join(dataset.fallback_patterns) or "none given"
        raise ConfigError(f"dataset.fallback_patterns: no page below {root} matches ({patterns}); see dataset.root")
    return tuple(_page(path, root) for path in found)


def _listed_pages(filelist: Path, root: Path, *, allow_absolute: bool) -> list[Path]:
    """The pages of a list, one path a line as it is, relative to the root or to its folder `images`."""
    key = "dataset.subset_filelist"
    try:
        lines = read_limited(filelist, LARGEST_LIST_BYTES).decode("utf-8").split("\n")
    except OSError as error:
        raise ConfigError(f"{key}: {filelist} cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{key}: {filelist} is not UTF-8 text ({error.reason} at byte {error.start})") from error
    wanted = [(number, line.strip()) for number, line in enumerate(lines, start=1) if line.strip()]
    if not wanted:
        raise ConfigError(f"{key}: {filelist} names no page; write one path a line")
    bound = [(number, name) for number, name in wanted if not (allow_absolute and Path(name).is_absolute())]
    leaving = [(number, name) for number, name in bound if _leaves(name, root)][:MISSING_SHOWN]
    if leaving:
        allowed = "allowed: paths below it, or absolute ones with dataset.allow_absolute=true"
        where = f"{key}: {filelist}, line"
        raise ConfigError([f"{where} {n}: leaves dataset.root (got {name!r}), {allowed}" for n, name in leaving])
    found = [(number, name, _existing(name, root)) for number, name in wanted]
    missing = [f"{key}: {filelist}, line {n}: no such file below {root}: {name}" for n, name, p in found if p is None]
    if len(missing) > MISSING_SHOWN:
        missing = [*missing[:MISSING_SHOWN], f"{key}: {filelist}: {len(missing) - MISSING_SHOWN} more are missing"]
    if missing:
        raise ConfigError(missing)
    return list(dict.fromkeys(path for _, _, path in found if path is not None))


def _leaves(name: str, root: Path) -> bool:
    return not Path(os.path.normpath(root / name)).is_relative_to(os.path.normpath(root))


def _existing(name: str, root: Path) -> Path | None:
    return next((p for p in (root / name, root / "images" / name) if p.is_file()), None)


def _page(path: Path, root: Path) -> Sample:
    inside = path.is_relative_to(root)
    return Sample(sample_id=(path.relative_to(root) if inside else path).as_posix(), image=path)


def _describe(sample: Sample, run_dir: Path) -> InputSample:
    if sample.image is not None:
        digest, size = hashlib.sha256(), 0
        with sample.image.open("rb") as file:
            while chunk := file.read(HASH_CHUNK_BYTES):
                digest.update(chunk)
                size += len(chunk)
        inside = sample.image.is_relative_to(run_dir)
        path = sample.image.relative_to(run_dir) if inside else sample.image
        sha256 = digest.hexdigest()
        return InputSample(sample_id=sample.sample_id, path=path.as_posix(), size_bytes=size, sha256=sha256)
    # Token ids are hashed as 32-bit little-endian numbers, texts as UTF-8.
    data = array("I", sample.token_ids).tobytes() if sample.token_ids is not None else (sample.text or "").encode()
    sha256 = hashlib.sha256(data).hexdigest()
    return InputSample(sample_id=sample.sample_id, path=None, size_bytes=len(data), sha256=sha256)
