"""Predictions and gallery, written as samples finish, each independent of the other.

`output.extra.<model>.*`: options of predictions and gallery that belong to a model, checked before a run starts.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from llm_perf_opt.config.load import validate
from llm_perf_opt.config.output import OutputConfig
from llm_perf_opt.config.paths import conf_dir
from llm_perf_opt.config.schema import FORBID_UNKNOWN, PositiveInt, Problem
from llm_perf_opt.core.manifest import strict_json
from llm_perf_opt.core.units import count_of
from llm_perf_opt.errors import ConfigError
from llm_perf_opt.system.files import write_page
from llm_perf_opt.workload.models.base import LoadedModel, PageFiles, Sample
from llm_perf_opt.workload.models.registry import load_adapter, page_files_of
from llm_perf_opt.workload.results import SampleResult


@dataclass(frozen=True, kw_only=True)
class PredictionOptions:
    """`prediction.*`: whether `text_clean` goes without the model's special tokens."""

    __pydantic_config__: ClassVar = FORBID_UNKNOWN
    strip_special_tokens: bool = False


@dataclass(frozen=True, kw_only=True)
class VisualizationOptions:
    """`visualization.*`: how many pages the gallery shows, and how wide."""

    __pydantic_config__: ClassVar = FORBID_UNKNOWN
    max_images: PositiveInt = 16
    thumbnail_width: PositiveInt = 480


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """One model's options."""

    __pydantic_config__: ClassVar = FORBID_UNKNOWN
    prediction: PredictionOptions = field(default_factory=PredictionOptions)
    visualization: VisualizationOptions = field(default_factory=VisualizationOptions)


def output_problems(output: OutputConfig) -> tuple[Problem, ...]:
    """What is wrong below `output.extra`, by keys relative to the stage's section."""
    known = sorted(path.name for path in (conf_dir() / "model").iterdir() if path.is_dir())
    found: list[Problem] = []
    for name, data in output.extra.items():
        key = f"output.extra.{name}"
        if name not in known:
            text = f"unknown key (got {json.dumps(data)}), allowed: a model family ({', '.join(known)})"
            found.append(Problem(key=key, text=text))
            continue
        found += validate(OutputOptions, data, key)[1]
    return tuple(found)


def options_for(extra: Mapping[str, Any], adapter: str) -> OutputOptions:
    """The options of the model whose adapter this is (`package.module:NAME`, called by its module's name)."""
    name = adapter.partition(":")[0].rpartition(".")[2]
    if name not in extra:
        return OutputOptions()
    options, problems = validate(OutputOptions, extra[name], f"output.extra.{name}")
    if options is None:
        raise ConfigError([str(problem) for problem in problems])
    return options


DEFAULT_PREDICTION_DIR = "pred"
DEFAULT_GALLERY_DIR = "viz"
PREDICTIONS_FILE = "predictions.jsonl"
GALLERY_FILE = "predictions.md"
TEXT_SHOWN = 2000


@dataclass(frozen=True, kw_only=True)
class OutputDirs:
    """Where the outputs go; None means not asked for."""

    prediction: Path | None
    visualization: Path | None


@dataclass(frozen=True, kw_only=True)
class PredictionTimings:
    """Of this sample in the clean pass; None where only one token was generated."""

    prepare_ms: float
    prefill_ms: float
    ttft_ms: float
    decode_ms: float | None
    tpot_ms: float | None
    e2e_ms: float


@dataclass(frozen=True, kw_only=True)
class PredictionLine:
    """One line of `predictions.jsonl`: what the model wrote, as it came and cleaned."""

    sample: str
    epoch: int
    text_raw: str
    text_clean: str
    timings: PredictionTimings
    tokens: int
    prompt_tokens: int


class Gallery:
    """`predictions.md`: grows by one entry per finished sample. Those beyond `max_images` are counted, not shown."""

    def __init__(self, folder: Path, *, max_images: int, thumbnail_width: int, page_files: PageFiles | None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._file = folder / GALLERY_FILE
        self._max_images = max_images
        self._thumbnail_width = thumbnail_width
        self._page_files = page_files
        self._shown = 0
        self._seen = 0
        self._head = "# Predictions\n"
        self._entries: list[str] = []
        self._write()

    def add(self, sample: Sample, result: SampleResult, *, text_raw: str, text_clean: str) -> None:
        """One more sample, drawn as long as there is room."""
        self._seen += 1
        if self._shown < self._max_images:
            self._shown += 1
            name = folder_name(f"{sample.sample_id}@{result.epoch}" if result.epoch else sample.sample_id)
            picture = self._describe(sample, name, text_raw, text_clean)
            self._entries.append(_entry(sample, result, text_clean, picture))
        self._write()

    def _write(self) -> None:
        left_out = self._seen - self._shown
        note = f"\nNot shown: {count_of(left_out, 'sample')} (max_images is {self._max_images}).\n" if left_out else ""
        write_page(self._file, "\n".join([self._head, *self._entries]) + note)

    def _describe(self, sample: Sample, name: str, text_raw: str, text_clean: str) -> str | None:
        """The sample's folder, with what the adapter adds to it; the path of its thumbnail inside the gallery."""
        folder = self._folder / name
        folder.mkdir(parents=True, exist_ok=True)
        write_page(folder / "page.md", text_clean + "\n")
        if self._page_files is None:
            return None
        thumbnail = self._page_files.describe(sample, text_raw, folder, thumbnail_width=self._thumbnail_width)
        return None if thumbnail is None else f"{name}/{thumbnail}"


def folder_name(sample_id: str) -> str:
    """A folder name for any sample id; ids that had to be changed get a short hash, so that no two collide."""
    safe = re.sub(r"[^A-Za-z0-9._-]+", "_", sample_id).strip("._")[:80]
    if safe == sample_id:
        return safe
    return f"{safe}-{hashlib.sha256(sample_id.encode()).hexdigest()[:8]}"


def _entry(sample: Sample, result: SampleResult, text: str, picture: str | None) -> str:
    shown = text if len(text) <= TEXT_SHOWN else f"{text[:TEXT_SHOWN]} … ({len(text) - TEXT_SHOWN} more characters)"
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", shown)), default=0))
    title = f"{sample.sample_id} (epoch {result.epoch})" if result.epoch else sample.sample_id
    lines = [f"## {title}", ""]
    if picture is not None:
        folder = picture.rpartition("/")[0]
        lines += [f"![page]({picture})", "", f"[boxes]({folder}/boxes.jpg) · [text]({folder}/page.md)", ""]
    lines += [
        f"{result.tokens} tokens, first after {result.generation.ttft_ms:.1f} ms, {result.e2e_ms:.1f} ms in all",
        "",
        f"{fence}text",
        shown,
        fence,
        "",
    ]
    return "\n".join(lines)


class OutputWriter:
    """Takes finished samples one by one."""

    def __init__(
        self,
        *,
        predictions: Path | None,
        gallery: Gallery | None,
        strip_special_tokens: bool,
        page_files: PageFiles | None,
    ) -> None:
        self._predictions = predictions
        self._gallery = gallery
        self._strip = strip_special_tokens
        self._page_files = page_files
        if predictions is not None:
            predictions.parent.mkdir(parents=True, exist_ok=True)
            predictions.write_text("", encoding="utf-8")

    def add(self, sample: Sample, result: SampleResult, model: LoadedModel) -> None:
        """Write the text of one sample, or of each of a batch, wherever it was requested."""
        # A batch may have been filled with samples it already holds.
        for member, token_ids in dict(zip(sample.members, result.generation.sequences, strict=True)).items():
            self._add(member, token_ids, result, model)

    def _add(self, sample: Sample, token_ids: Sequence[int], result: SampleResult, model: LoadedModel) -> None:
        raw = model.text(token_ids, strip_special=False)
        clean = self._clean(model.text(token_ids, strip_special=True) if self._strip else raw)
        if self._predictions is not None:
            prediction = _prediction(result, raw, clean, sample_id=sample.sample_id, tokens=len(token_ids))
            line = strict_json(prediction)
            with self._predictions.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        if self._gallery is not None:
            self._gallery.add(sample, result, text_raw=raw, text_clean=clean)

    def _clean(self, text: str) -> str:
        without = text if self._page_files is None else self._page_files.strip_markup(text)
        return re.sub(r"\n{3,}", "\n\n", without).strip()


def resolve_dirs(output: OutputConfig, stage_dir: Path) -> OutputDirs:
    """A relative `save_dir` is below the stage's directory, null is the default, an absolute one is honoured."""
    prediction, visualization = output.prediction, output.visualization
    return OutputDirs(
        prediction=_resolve(prediction.save_dir, DEFAULT_PREDICTION_DIR, stage_dir) if prediction.enable else None,
        visualization=_resolve(visualization.save_dir, DEFAULT_GALLERY_DIR, stage_dir)
        if visualization.enable
        else None,
    )


def open_outputs(output: OutputConfig | None, stage_dir: Path, *, adapter: str) -> OutputWriter | None:
    """The writer of what was requested, or None when nothing was."""
    if output is None:
        return None
    dirs = resolve_dirs(output, stage_dir)
    if dirs.prediction is None and dirs.visualization is None:
        return None
    options = options_for(output.extra, adapter)
    page_files = page_files_of(load_adapter(adapter))
    gallery = None
    if dirs.visualization is not None:
        gallery = Gallery(
            dirs.visualization,
            max_images=options.visualization.max_images,
            thumbnail_width=options.visualization.thumbnail_width,
            page_files=page_files,
        )
    return OutputWriter(
        predictions=None if dirs.prediction is None else dirs.prediction / PREDICTIONS_FILE,
        gallery=gallery,
        strip_special_tokens=options.prediction.strip_special_tokens,
        page_files=page_files,
    )


def _resolve(save_dir: str | None, default: str, stage_dir: Path) -> Path:
    # An absolute path on the right of `/` replaces the left side.
    return stage_dir / Path(save_dir or default).expanduser()


def _prediction(result: SampleResult, raw: str, clean: str, *, sample_id: str, tokens: int) -> PredictionLine:
    timings = PredictionTimings(
        prepare_ms=result.prepare_ms,
        prefill_ms=result.generation.prefill_ms,
        ttft_ms=result.generation.ttft_ms,
        decode_ms=result.generation.decode_ms,
        tpot_ms=result.tpot_ms,
        e2e_ms=result.e2e_ms,
    )
    return PredictionLine(
        sample=sample_id,
        epoch=result.epoch,
        text_raw=raw,
        text_clean=clean,
        timings=timings,
        tokens=tokens,
        prompt_tokens=result.prompt_tokens,
    )
