"""What every child process of a run does first: compose the configuration it was given as overrides."""

import gc
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from llm_perf_opt.commands.entry import LastResort
from llm_perf_opt.config.legacy import translate
from llm_perf_opt.config.schema import AppConfig
from llm_perf_opt.core.records import LAST_STEP, begin_step
from llm_perf_opt.errors import EXIT_FAILED, EXIT_OK, ProfilingError
from llm_perf_opt.pipeline.compose import COMPOSITION_ERRORS, compose_config, explain_composition_error, type_config
from llm_perf_opt.profiling.vendor.launch import CHILD_FLAG
from llm_perf_opt.system.files import in_words, is_full_disk
from llm_perf_opt.workload.ranks import own_rank

TEXT_MODELS = "llm_perf_opt.workload.models.causal_lm:ADAPTER"
# transformers imports them where they are installed: 6 of the 16 seconds its import took on a server image.
NOT_FOR_TEXT = frozenset(("torchvision", "sklearn"))


def hide_packages(adapter: str) -> None:
    """Make packages look absent in this process that transformers would import although no text model needs them.

    Adapters of others may need them. Only children of ours do this, never a user's program.
    """
    if adapter == TEXT_MODELS:
        # A name that maps to None cannot be imported: code that tries to import it assumes it is not installed.
        sys.modules.update(dict.fromkeys(NOT_FOR_TEXT - sys.modules.keys()))  # type: ignore[arg-type]


def load_child_config(argv: Sequence[str]) -> tuple[AppConfig, Path]:
    """The typed configuration of a child, and the directory it works in (made, and entered if chdir says so)."""
    overrides = translate([arg for arg in argv if arg != CHILD_FLAG]).overrides
    try:
        composed = compose_config(overrides)
    except COMPOSITION_ERRORS as error:
        raise explain_composition_error(error, overrides, user_dir=Path.cwd()) from error
    out_dir = Path(str(composed.hydra.run.dir)).resolve()
    config = type_config(composed, user_dir=Path.cwd())
    rank = own_rank(os.environ, tp=config.infer.tp)
    out_dir = out_dir if rank is None else rank.folder(out_dir)
    out_dir.mkdir(parents=True, exist_ok=True)
    if composed.hydra.job.chdir:
        os.chdir(out_dir)
    return config, out_dir


def run_child(work: Callable[[AppConfig, Path], None], argv: Sequence[str]) -> int:
    """Run a child's work and turn errors, also unforeseen ones, into a message on the log and an exit code."""
    begin_step("configuration")
    with LastResort(in_log=True), _without_collection():
        try:
            config, out_dir = load_child_config(argv)
            hide_packages(config.model.adapter)
            work(config, out_dir)
        except ProfilingError as error:
            print(f"error: {error}", file=sys.stderr)
            return error.exit_code
        except OSError as error:
            if not is_full_disk(error):
                raise
            print(f"error: {in_words(error)}", file=sys.stderr)
            return EXIT_FAILED
        begin_step(LAST_STEP)
        return EXIT_OK
    return EXIT_FAILED


@contextmanager
def _without_collection() -> Iterator[None]:
    """The garbage collector is off while modules are imported, nor when the process ends.

    Imports make hundreds of thousands of objects that stay: looking for garbage among them took a fifth of their time,
    taking them apart at the end a quarter. `open_session` switches it on again before anything is measured.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.freeze()
