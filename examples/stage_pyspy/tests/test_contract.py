"""The stage keeps the contract of llm-perf, with the real py-spy."""

import sys
from pathlib import Path

from stage_pyspy.stacks import draw_flames, read_stacks
from stage_pyspy.stage import STAGE, PyspyConfig

from llm_perf_opt.plugin import AppConfig
from llm_perf_opt.testing import StageCase, StageContract, plain_config

BUSY = """
import time

def work():
    until = time.monotonic() + 0.7
    while time.monotonic() < until:
        sum(range(1000))

work()
"""


STACKS = """\
process 7:"python -c "a; b"";main (a.py);work (a.py) 3
main (a.py);rest <b> (a.py) 1
nonsense
"""


def program(folder: Path, *command: str) -> AppConfig:
    config = plain_config(folder)
    workload = type(config.workload)(command=command)
    return plain_config(folder, workload=workload)


class TestPyspy(StageContract):
    stage = STAGE

    def success(self, folder: Path) -> StageCase:
        return StageCase(settings=PyspyConfig(enable=True), config=program(folder, sys.executable, "-c", BUSY))

    def failure(self, folder: Path) -> StageCase:
        failing = program(folder, sys.executable, "-c", BUSY + "raise SystemExit(3)")
        return StageCase(settings=PyspyConfig(enable=True), config=failing)

    def skip(self, folder: Path) -> None:
        return None

    def timeout(self, folder: Path) -> StageCase:
        return StageCase(settings=PyspyConfig(enable=True, timeout_s=0.5), config=program(folder, "sleep", "60"))


def test_stacks_become_a_tree_and_a_picture() -> None:
    sampled = read_stacks(STACKS)
    assert (sampled.root.samples, sampled.own) == (4, {"work (a.py)": 3, "rest <b> (a.py)": 1})
    picture = draw_flames(sampled.root)
    assert "work (a.py): 3 samples, 75.0 %" in picture and "rest &lt;b&gt;" in picture
