"""Marks the phases of libraries whose loops are known, as `llm_perf_opt.phase` would in the program itself.

transformers: `generate()` (which `pipeline()` uses too) as prefill and decode steps with their tokens, a `Trainer`'s
training steps. Any other training loop of torch: from one step of its optimizer to the next. Prefill lasts from the
call to the preparation of the second token's inputs, so with the choice of the first token; a decode step from one
preparation to the next, the last one to the end of the call. Forward hooks would be compiled into the model, and
arguments are left as they are. Phases that the program marks itself win.

Started by `sitecustomize` where LLM_PERF_GENERATED holds the path of `marks.py`, which any Python can load.
"""

import functools
import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

FOLDER = "LLM_PERF_MARKS_DIR"
WRAPPED = "_llm_perf_wrapped"
PHASE = "phase"


def load_marks(path: str) -> Any:
    """The program's own marks where it has them, else those of the file: they need nothing but the standard library."""
    known = sys.modules.get("llm_perf_opt.marks") or sys.modules.get("_llm_perf_marks")
    if known is not None:
        return known
    if importlib.util.find_spec("llm_perf_opt") is not None:
        return importlib.import_module("llm_perf_opt.marks")
    spec = importlib.util.spec_from_file_location("_llm_perf_marks", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path}: cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules["_llm_perf_marks"] = module
    spec.loader.exec_module(module)
    return module


class GenerateCall:
    """One call of `generate()`: the open phase, whether a token was finished in it, and the depth of calls inside."""

    def __init__(self, marks: Any, prompt_tokens: int, batch: int) -> None:
        self.marks = marks
        self.batch = batch
        self.has_token = False
        self.depth = 1
        self.phase = marks.phase("prefill", tokens=prompt_tokens, found=True)
        self.phase.__enter__()

    def prepares(self) -> None:
        """Inputs are prepared: after a token, those of the next one."""
        if not self.has_token:
            return
        self.has_token = False
        self.end()
        self.phase = self.marks.phase("decode_step", tokens=self.batch, found=True)
        self.phase.__enter__()

    def end(self) -> None:
        self.phase.__exit__(None, None, None)


class GenerationMarks:
    """Wraps `generate()` and what it calls for each token; of nested calls, such as an assistant's, the outermost."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.local = threading.local()
        self.is_described = False

    def wrap(self, module: Any) -> None:
        mixin = getattr(module, "GenerationMixin", None)
        if mixin is None or not hasattr(mixin, "_update_model_kwargs_for_generation"):
            return
        self.wrap_method(mixin, "_update_model_kwargs_for_generation", self.token_is_done)
        self.wrap_generate(mixin)

    def wrap_generate(self, mixin: Any) -> None:
        original = mixin.generate

        @functools.wraps(original)
        def generate(model: Any, *args: Any, **kwargs: Any) -> Any:
            marks = load_marks(self.path)
            if self.call is not None:
                with self.inside(self.call):
                    return original(model, *args, **kwargs)
            if PHASE in marks._around.get():
                return original(model, *args, **kwargs)
            for owner in type(model).__mro__:
                if "prepare_inputs_for_generation" in vars(owner) and not hasattr(
                    vars(owner)["prepare_inputs_for_generation"], WRAPPED
                ):
                    self.wrap_method(owner, "prepare_inputs_for_generation", self.inputs_are_prepared)
            call = GenerateCall(marks, *prompt_of(args, kwargs))
            self.local.call = call
            try:
                return original(model, *args, **kwargs)
            finally:
                self.local.call = None
                call.end()
                self.describe(model)

        mixin.generate = generate

    def describe(self, model: Any) -> None:
        """The first model that generates, by its own configuration: bounds are taken of it. No phase is open then."""
        folder = os.environ.get(FOLDER)
        if self.is_described or not folder:
            return
        self.is_described = True
        config: Any = getattr(model, "config", None)
        parameter: Any = next(iter(model.parameters()), None) if hasattr(model, "parameters") else None
        if not hasattr(config, "to_dict") or parameter is None:
            return
        import json

        document = {
            "name": os.path.basename(str(getattr(config, "_name_or_path", "")).rstrip("/")) or type(model).__name__,
            "dtype": str(parameter.dtype).removeprefix("torch."),
            "device": parameter.device.type,
            "config": config.to_dict(),
        }
        # What JSON cannot represent, such as a dtype, is not a size.
        with suppress(OSError, TypeError, ValueError):
            text = json.dumps(document, default=str, allow_nan=False)
            with open(os.path.join(folder, f"model-{os.getpid()}.json"), "w", encoding="utf-8") as file:
                file.write(text)

    @contextmanager
    def inside(self, call: GenerateCall) -> Iterator[None]:
        """Tokens of a call inside another one are not that one's."""
        call.depth += 1
        try:
            yield
        finally:
            call.depth -= 1

    def wrap_method(self, owner: Any, name: str, document: Callable[[], None]) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def method(*args: Any, **kwargs: Any) -> Any:
            document()
            return original(*args, **kwargs)

        setattr(method, WRAPPED, True)
        setattr(owner, name, method)

    @property
    def call(self) -> GenerateCall | None:
        return getattr(self.local, "call", None)

    def token_is_done(self) -> None:
        if self.call is not None and self.call.depth == 1:
            self.call.has_token = True

    def inputs_are_prepared(self) -> None:
        if self.call is not None and self.call.depth == 1:
            self.call.prepares()


def prompt_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, int]:
    """Tokens of the prompts, all sequences together, and how many sequences there are."""
    inputs = kwargs.get("input_ids", kwargs.get("inputs", args[0] if args else None))
    shape = tuple(getattr(inputs, "shape", ()))
    if len(shape) != 2:
        return 1, 1
    return int(shape[0]) * int(shape[1]), int(shape[0])


class TrainerMarks:
    """Wraps the training step of transformers' Trainer: one micro-batch."""

    is_used = False

    def __init__(self, path: str) -> None:
        self.path = path

    def wrap(self, module: Any) -> None:
        trainer = getattr(module, "Trainer", None)
        if trainer is None or not hasattr(trainer, "training_step"):
            return
        original = trainer.training_step

        @functools.wraps(original)
        def training_step(*args: Any, **kwargs: Any) -> Any:
            TrainerMarks.is_used = True
            marks = load_marks(self.path)
            if PHASE in marks._around.get():
                return original(*args, **kwargs)
            with marks.phase("training_step", found=True):
                return original(*args, **kwargs)

        trainer.training_step = training_step


class OptimizerMarks:
    """Times a training loop of the program's own: a step lasts from the end of one step of its optimizer to the next.

    Nothing is kept open around the program's own code, and there is no wait for a GPU. Of several optimizers the first
    counts; a `Trainer` has steps of its own.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.first: int | None = None
        self.close: Callable[[], object] | None = None

    def wrap(self, module: Any) -> None:
        register = getattr(module, "register_optimizer_step_post_hook", None)
        if register is None:
            return
        # Half-imported still.
        torch = sys.modules["torch"]

        def stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
            # A compiled step must find nothing here to trace.
            if torch.compiler.is_compiling():
                return
            self.step_is_done(optimizer)

        register(stepped)

    def step_is_done(self, optimizer: Any) -> None:
        self.first = self.first or id(optimizer)
        marks = load_marks(self.path)
        journal = marks._journal
        if journal is None or id(optimizer) != self.first or TrainerMarks.is_used:
            return
        if self.close is not None:
            self.close()
        self.close = journal.open("phase", "training_step", {"depth": 0, "warmup": False}, {"found": True}, False)


class LibraryWatcher:
    """A finder that lets modules be imported as always and wraps what is in them when that is done."""

    def __init__(self, wraps: dict[str, Callable[[Any], None]]) -> None:
        self.wraps = wraps
        self.inside = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self.wraps or self.inside:
            return None
        self.inside = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.inside = False
        if spec is None or spec.loader is None:
            return None
        loader: Any = spec.loader
        run = loader.exec_module

        def exec_module(module: Any) -> None:
            run(module)
            self.wraps[name](module)

        loader.exec_module = exec_module
        return spec


def start(path: str) -> None:
    """Wait for the libraries; nothing is imported before the program does."""
    if not os.path.isfile(path):
        return
    wraps: dict[str, Callable[[Any], None]] = {
        "transformers.generation.utils": GenerationMarks(path).wrap,
        "transformers.trainer": TrainerMarks(path).wrap,
        "torch.optim.optimizer": OptimizerMarks(path).wrap,
    }
    sys.meta_path.insert(0, LibraryWatcher(wraps))
