"""The built wheel carries its configuration."""

import subprocess
import sys
import zipfile
from pathlib import Path

from tests.support.fixtures_dir import REPO


def test_the_wheel_ships_conf_and_the_entry_points(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(REPO)],
        capture_output=True,
        timeout=120,
        check=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (entry_points,) = [n for n in names if n.endswith("entry_points.txt")]
        text = archive.read(entry_points).decode()
    shipped = {n.removeprefix("llm_perf_opt/conf/") for n in names if n.startswith("llm_perf_opt/conf/")}
    source = {str(p.relative_to(REPO / "conf")) for p in (REPO / "conf").rglob("*") if p.is_file()}
    assert shipped == source
    assert "llm-perf = llm_perf_opt.cli:main" in text
    assert "nsys = llm_perf_opt.profiling.stages.nsys:STAGE" in text
    ours = {str(p.relative_to(REPO / "src")) for p in (REPO / "src").rglob("*") if p.is_file() and p.suffix != ".pyc"}
    assert ours - names == set()
