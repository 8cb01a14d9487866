"""Where `pipeline.<stage>.output` put predictions and gallery, as files of the stage."""

from pathlib import Path

from llm_perf_opt.config.output import OutputConfig
from llm_perf_opt.core.records import StageFile
from llm_perf_opt.workload.gallery import GALLERY_FILE
from llm_perf_opt.workload.outputs import PREDICTIONS_FILE, resolve_dirs


def output_files(output: OutputConfig, stage_dir: Path) -> tuple[StageFile, ...]:
    """Those of the two that were asked for and written."""
    dirs = resolve_dirs(output, stage_dir)
    wanted = [
        ("predictions", None if dirs.prediction is None else dirs.prediction / PREDICTIONS_FILE),
        ("gallery", None if dirs.visualization is None else dirs.visualization / GALLERY_FILE),
    ]
    return tuple(StageFile(role=role, path=path) for role, path in wanted if path is not None and path.is_file())
