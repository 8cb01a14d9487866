"""Kernels torch.compile wrote: found in its cache, kept in the run, opened from a kernel's row."""

import json
from pathlib import Path

from llm_perf_opt.core.documents import GeneratedKernel
from llm_perf_opt.core.sections import Link
from llm_perf_opt.profiling.generated import collect_generated, find_kernels, read_nodes

TRITON = """
async_compile = AsyncCompile()

# kernel path: /tmp/inductor/ab/cab.py
# Topologically Sorted Source Nodes: [x, y], Original ATen: [aten.add, aten.mul, aten.add]
triton_poi_fused_add_mul_0 = async_compile.triton('triton_poi_fused_add_mul_0', '''
import triton
def triton_poi_fused_add_mul_0(in_ptr0):
    pass
''', device_str='cuda')


cpp_fused_relu_1 = async_compile.cpp_pybinding(['const float*', 'float*'], r'''
extern "C" void kernel(const float* in_ptr0) {}
''')
"""


NODES = {"x": "model.layers.0.mlp", "y": "model.layers.0.mlp", "z": "lm_head"}


def test_triton_and_c_kernels_are_found_with_what_they_are_made_of() -> None:
    assert list(find_kernels(TRITON, NODES)) == [
        (
            GeneratedKernel(
                name="triton_poi_fused_add_mul_0",
                language="triton",
                operators=("aten.add", "aten.mul"),
                file="",
                modules=("model.layers.*.mlp",),
            ),
            "import triton\ndef triton_poi_fused_add_mul_0(in_ptr0):\n    pass\n",
        ),
        (
            GeneratedKernel(name="cpp_fused_relu_1", language="cpp", operators=("relu",), file=""),
            'extern "C" void kernel(const float* in_ptr0) {}\n',
        ),
    ]


def test_sources_are_kept_in_the_stage_and_linked(tmp_path: Path) -> None:
    cache = tmp_path / "tmp" / "inductor" / "ab"
    cache.mkdir(parents=True)
    (cache / "cab.py").write_text(TRITON)
    (cache / "again.py").write_text(TRITON)
    out = tmp_path / "torch_profiler"
    out.mkdir()
    files, sections = collect_generated(tmp_path, out)
    assert [(file.role, file.path) for file in files] == [("generated_kernels", out / "generated.json")]
    kernels = json.loads(files[0].path.read_bytes())["kernels"]
    assert [kernel["file"] for kernel in kernels] == [
        "torch_profiler/generated/triton_poi_fused_add_mul_0.py",
        "torch_profiler/generated/cpp_fused_relu_1.cpp",
    ]
    assert (tmp_path / kernels[1]["file"]).read_text() == 'extern "C" void kernel(const float* in_ptr0) {}\n'
    assert sections[0].links[0] == Link(
        text="triton_poi_fused_add_mul_0", target="torch_profiler/generated/triton_poi_fused_add_mul_0.py"
    )


def test_modules_are_a_column_where_some_are_known(tmp_path: Path) -> None:
    cache = tmp_path / "tmp" / "inductor"
    cache.mkdir(parents=True)
    (cache / "cab.py").write_text(TRITON)
    _, (plain,) = collect_generated(tmp_path, tmp_path / "torch_profiler")
    (cache / "source_nodes.jsonl").write_text(json.dumps(NODES) + "\n")
    _, (joined,) = collect_generated(tmp_path, tmp_path / "torch_profiler")
    assert plain.tables[0].columns == ("kernel", "language", "made of")
    assert [row[-1] for row in joined.tables[0].rows] == ["model.layers.*.mlp", "not known"]


def test_nothing_is_written_where_nothing_was_compiled(tmp_path: Path) -> None:
    assert collect_generated(tmp_path, tmp_path) == ((), ())
    assert list(tmp_path.iterdir()) == []


def test_an_operation_of_two_modules_is_of_none(tmp_path: Path) -> None:
    lines = [{"x": "model.layers.0.mlp", "y": "norm"}, {"x": "model.layers.0.mlp", "y": "lm_head"}]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "nodes").write_text(text + '{"cut off": "mod')
    assert read_nodes(tmp_path / "nodes") == {"x": "model.layers.0.mlp"}
    assert read_nodes(tmp_path / "none") == {}
