"""Our five stages and those of a plug-in keep the contract every stage is held to."""

import csv
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from llm_perf_opt.config.schema import AppConfig, InferSection, WorkloadSection
from llm_perf_opt.core.host import Tool
from llm_perf_opt.core.records import StageFile, StageRecord
from llm_perf_opt.pipeline.compose import compose_config, type_config
from llm_perf_opt.profiling.stages import direct_inference, ncu, nsys, static_analysis, torch_profiler
from llm_perf_opt.testing import StageCase, StageContract, plain_config, plain_host
from tests.support import fake_ncu, fake_nsys
from tests.support.fixtures_dir import DATA, REPO
from tests.support.ncu_run import H200
from tests.support.workload_fakes import FakeConfig, prompts

sys.path.append(str(DATA / "plugin"))
from recorder_stages import ALPHA, TIMER, RecorderConfig, TimerConfig

IMPORTS_FAKES = {"PYTHONPATH": os.pathsep.join([str(REPO), str(REPO / "src")])}


class TestRecorder(StageContract):
    stage = ALPHA

    def success(self, folder: Path) -> StageCase:
        return StageCase(settings=RecorderConfig(enable=True, timeout_s=60.0))

    def failure(self, folder: Path) -> StageCase:
        return StageCase(settings=RecorderConfig(enable=True, fail="words"))

    def skip(self, folder: Path) -> StageCase:
        return StageCase(settings=RecorderConfig(enable=True, fail="skip"))

    def timeout(self, folder: Path) -> StageCase:
        return StageCase(settings=RecorderConfig(enable=True, seconds=60.0, timeout_s=0.5))


class TestTimer(StageContract):
    stage = TIMER

    def success(self, folder: Path) -> StageCase:
        return StageCase(settings=TimerConfig(enable=True))

    def failure(self, folder: Path) -> None:
        return None

    def skip(self, folder: Path) -> None:
        return None

    def timeout(self, folder: Path) -> None:
        return None


@pytest.mark.slow
@pytest.mark.xdist_group("contract_StaticAnalysis")
class TestStaticAnalysis(StageContract):
    stage = static_analysis.STAGE

    def case(self, folder: Path, timeout_s: float) -> StageCase:
        settings = static_analysis.StaticAnalysisConfig(enable=True, timeout_s=timeout_s, use_analytic_fallback=False)
        composed = compose_config([f"artifacts.runs_dir={folder}", "model=llama_tiny", "dataset=synthetic"])
        return StageCase(settings=settings, config=type_config(composed, user_dir=folder))

    def success(self, folder: Path) -> StageCase:
        return self.case(folder, 120.0)

    def failure(self, folder: Path) -> StageCase:
        case = self.case(folder, 120.0)
        return replace(case, env={"PYTHONPATH": "/nowhere", "PYTHONHOME": "/nowhere"})

    def skip(self, folder: Path) -> None:
        return None

    def timeout(self, folder: Path) -> StageCase:
        return self.case(folder, 0.2)


def fake_model(folder: Path, lines: Sequence[str]) -> AppConfig:
    return FakeConfig(dataset=prompts(folder / "p.txt", lines), infer=InferSection(max_new_tokens=3)).build(folder)


@pytest.mark.slow
@pytest.mark.xdist_group("contract_TorchProfiler")
class TestTorchProfiler(StageContract):
    stage = torch_profiler.STAGE

    def case(self, folder: Path, *lines: str, timeout_s: float = 120.0) -> StageCase:
        settings = torch_profiler.TorchProfilerConfig(enable=True, timeout_s=timeout_s)
        return StageCase(settings=settings, config=fake_model(folder, lines), env=IMPORTS_FAKES)

    def success(self, folder: Path) -> StageCase:
        return self.case(folder, "1 2", "3")

    def failure(self, folder: Path) -> StageCase:
        return self.case(folder, "bad", "bad")

    def skip(self, folder: Path) -> None:
        return None

    def timeout(self, folder: Path) -> StageCase:
        return self.case(folder, "1", timeout_s=0.2)


@pytest.mark.slow
@pytest.mark.xdist_group("contract_DirectInference")
class TestDirectInference(StageContract):
    stage = direct_inference.STAGE

    def case(self, folder: Path, *lines: str, timeout_s: float = 120.0) -> StageCase:
        settings = direct_inference.DirectInferenceConfig(enable=True, timeout_s=timeout_s)
        return StageCase(settings=settings, config=fake_model(folder, lines), env=IMPORTS_FAKES)

    def success(self, folder: Path) -> StageCase:
        return self.case(folder, "1 2", "3")

    def failure(self, folder: Path) -> StageCase:
        return self.case(folder, "bad", "bad")

    def skip(self, folder: Path) -> None:
        return None

    def timeout(self, folder: Path) -> StageCase:
        return self.case(folder, "1", timeout_s=0.2)


class TestNsys(StageContract):
    stage = nsys.STAGE

    def case(self, folder: Path, *command: str, timeout_s: float = 60.0) -> StageCase:
        fake_nsys.install(folder / "bin")
        tool = Tool(name="nsys", path=str(folder / "bin" / "nsys"), version="2025.3.1")
        return StageCase(
            settings=nsys.NsysConfig(enable=True, timeout_s=timeout_s),
            config=plain_config(folder, workload=WorkloadSection(command=command)),
            host=plain_host(tools={"nsys": tool}, gpus=(H200,)),
        )

    def success(self, folder: Path) -> StageCase:
        return self.case(folder, "true")

    def failure(self, folder: Path) -> StageCase:
        return self.case(folder, "false")

    def skip(self, folder: Path) -> None:
        return None

    def timeout(self, folder: Path) -> StageCase:
        return self.case(folder, "sleep", "60", timeout_s=0.5)


class TestNcu(StageContract):
    stage = ncu.STAGE

    def case(self, folder: Path, *command: str, timeout_s: float = 60.0, **says: str) -> StageCase:
        record = fake_ncu.install(folder / "bin")
        tool = Tool(name="ncu", path=str(folder / "bin" / "ncu"), version="2025.3.1")
        summary = DATA / "ncu_decode_kern_sum.csv"
        names = [row["Name"] for row in csv.DictReader(summary.open())]
        files = (StageFile(role="kernel_summary", path=summary),)
        return StageCase(
            settings=ncu.NcuConfig(enable=True, timeout_s=timeout_s),
            config=plain_config(folder, workload=WorkloadSection(command=command)),
            host=plain_host(tools={"ncu": tool}, gpus=(H200,)),
            env={"FAKE_NCU_KERNELS": "|".join(names), **says},
            earlier={"nsys": StageRecord(name="nsys", status="ok", files=files)},
            written_by_others=(record,),
        )

    def success(self, folder: Path) -> StageCase:
        return self.case(folder, "true")

    def failure(self, folder: Path) -> StageCase:
        return self.case(folder, "true", FAKE_NCU_SAYS="==ERROR== it ends here", FAKE_NCU_EXIT="1")

    def skip(self, folder: Path) -> None:
        return None

    def timeout(self, folder: Path) -> StageCase:
        case = self.case(folder, "true", timeout_s=1.0)
        sleeper = folder / "bin" / "ncu"
        sleeper.write_text('#!/bin/sh\ncase "$*" in *--list*) exit 0;; esac\nsleep 60\n')
        return case
