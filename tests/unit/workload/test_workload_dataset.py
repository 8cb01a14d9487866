"""Finding, checking and planning samples, all before a model is loaded."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from llm_perf_opt.config.schema import DatasetSection, SamplingSection
from llm_perf_opt.core.documents import InputSample
from llm_perf_opt.errors import ConfigError
from llm_perf_opt.plugins.deepseek_ocr import ADAPTER as OCR
from llm_perf_opt.workload.dataset import (
    Vocabulary,
    describe_inputs,
    list_samples,
    plan_notes,
    plan_samples,
    vocabulary_of,
)
from llm_perf_opt.workload.models.base import Sample
from llm_perf_opt.workload.models.registry import page_files_of

WORDS = Vocabulary(size=100, special_ids=frozenset([1, 2]))


def pages(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(path)
    return root


def listed(dataset: DatasetSection, kind: str = "pages", scratch: Path = Path("unused")) -> list[str]:
    return [s.sample_id for s in list_samples(dataset, data_kind=kind, vocabulary=WORDS, scratch_dir=scratch)]


def test_names_with_commas_and_spaces_are_found_by_list_and_by_pattern(tmp_path: Path) -> None:
    root = pages(tmp_path / "set", "images/a, b (1).png", "images/c.jpg", "d e.png")
    filelist = tmp_path / "dev.txt"
    filelist.write_text("images/a, b (1).png\n\nc.jpg\r\nd e.png\n", encoding="utf-8")
    dataset = DatasetSection(kind="omnidocbench", root=root, subset_filelist=filelist)
    assert listed(dataset) == ["images/a, b (1).png", "images/c.jpg", "d e.png"]
    patterns = ("images/*.png", "*.png", "images/*")
    by_pattern = DatasetSection(kind="omnidocbench", root=root, fallback_patterns=patterns)
    assert listed(by_pattern) == ["images/a, b (1).png", "d e.png", "images/c.jpg"]


def test_every_missing_listed_file_is_named_with_its_list_and_line(tmp_path: Path) -> None:
    root = pages(tmp_path / "set", "a.png")
    filelist = tmp_path / "dev.txt"
    filelist.write_text("a.png\ngone, 1.png\n\nalso gone.png\n", encoding="utf-8")
    with pytest.raises(ConfigError) as error:
        listed(DatasetSection(kind="omnidocbench", root=root, subset_filelist=filelist))
    assert error.value.problems == (
        f"dataset.subset_filelist: {filelist}, line 2: no such file below {root}: gone, 1.png",
        f"dataset.subset_filelist: {filelist}, line 4: no such file below {root}: also gone.png",
    )


def test_an_empty_list_an_empty_folder_and_a_missing_root_are_refused(tmp_path: Path) -> None:
    root = pages(tmp_path / "set", "a.gif")
    empty = tmp_path / "empty.txt"
    empty.write_text("\n\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="names no page"):
        listed(DatasetSection(kind="omnidocbench", root=root, subset_filelist=empty))
    with pytest.raises(ConfigError, match=r"dataset.fallback_patterns: no page below .* matches \(\*.png\)"):
        listed(DatasetSection(kind="omnidocbench", root=root, fallback_patterns=("*.png",)))
    with pytest.raises(ConfigError, match=r"dataset.root: no such folder"):
        listed(DatasetSection(kind="omnidocbench", root=tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="cannot be read"):
        listed(DatasetSection(kind="omnidocbench", root=root, subset_filelist=tmp_path / "no.txt"))


def test_prompts_come_from_text_or_jsonl_and_bad_lines_are_named(tmp_path: Path) -> None:
    text = tmp_path / "p.txt"
    text.write_text("first, with comma\n\nsecond\n", encoding="utf-8")
    samples = list_samples(
        DatasetSection(kind="prompts", file=text), data_kind="tokens", vocabulary=WORDS, scratch_dir=tmp_path
    )
    assert samples == (
        Sample(sample_id="p.txt:1", text="first, with comma"),
        Sample(sample_id="p.txt:3", text="second"),
    )
    lines = tmp_path / "p.jsonl"
    lines.write_text('{"prompt": "a\\u2028b"}\n{"promt": "b"}\n', encoding="utf-8")
    with pytest.raises(ConfigError, match=r'p.jsonl, line 2: not an object with a text under "prompt"'):
        listed(DatasetSection(kind="prompts", file=lines), "tokens")
    lines.write_text("{oops\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="line 1: not JSON"):
        listed(DatasetSection(kind="prompts", file=lines), "tokens")
    lines.write_text("\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="has no prompt in it"):
        listed(DatasetSection(kind="prompts", file=lines), "tokens")


def test_pages_for_a_text_model_and_prompts_for_an_ocr_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"dataset.kind: holds pages, the model reads tokens \(got 'omnidocbench'\)"):
        listed(DatasetSection(kind="omnidocbench", root=tmp_path), "tokens")
    with pytest.raises(ConfigError, match=r"dataset.kind: holds tokens, the model reads pages"):
        listed(DatasetSection(kind="prompts", file=tmp_path / "p.txt"), "pages")


def test_made_up_prompts_depend_on_the_seed_and_leave_special_tokens_out(tmp_path: Path) -> None:
    dataset = DatasetSection(kind="synthetic", prompt_tokens=500, num_samples=2)
    one, two = list_samples(dataset, data_kind="tokens", vocabulary=WORDS, scratch_dir=tmp_path)
    again = list_samples(dataset, data_kind="tokens", vocabulary=WORDS, scratch_dir=tmp_path)
    assert (one, two) == again
    assert one.token_ids != two.token_ids
    assert one.token_ids is not None
    assert len(one.token_ids) == 500
    assert set(one.token_ids) <= set(range(100)) - {1, 2}


def test_made_up_pages_are_real_pictures_and_the_same_for_the_same_seed(tmp_path: Path) -> None:
    dataset = DatasetSection(kind="synthetic", num_samples=2, page_width=300, page_height=400)
    first, second = (
        list_samples(
            dataset,
            data_kind="pages",
            vocabulary=None,
            scratch_dir=tmp_path / folder,
            page_files=page_files_of(OCR),
        )
        for folder in "12"
    )
    assert first[0].image is not None
    assert second[0].image is not None
    assert first[0].image.read_bytes() == second[0].image.read_bytes()
    with Image.open(first[0].image) as page:
        assert page.size == (300, 400)
        ink = sum(page.convert("L").histogram()[:128])
    assert 0.005 < ink / (300 * 400) < 0.5


def test_an_adapter_that_draws_no_pages_needs_real_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"dataset.kind: the model's adapter draws no synthetic pages"):
        list_samples(DatasetSection(kind="synthetic"), data_kind="pages", vocabulary=None, scratch_dir=tmp_path)


def plan(count: int, **sampling: int | bool | None) -> list[tuple[int, str]]:
    samples = [Sample(sample_id=str(i)) for i in range(count)]
    return [(p.epoch, p.sample.sample_id) for p in plan_samples(samples, SamplingSection(**sampling))]  # type: ignore[arg-type]


def test_without_chance_the_window_moves_on_by_its_size_every_epoch() -> None:
    assert plan(5, num_epochs=3, num_samples_per_epoch=2) == [
        (0, "0"),
        (0, "1"),
        (1, "2"),
        (1, "3"),
        (2, "4"),
        (2, "0"),
    ]
    assert plan(2) == [(0, "0"), (0, "1")]


def test_with_chance_the_seed_decides_and_no_sample_comes_twice_in_an_epoch() -> None:
    drawn = plan(50, num_epochs=2, num_samples_per_epoch=20, randomize=True, seed=3)
    assert drawn == plan(50, num_epochs=2, num_samples_per_epoch=20, randomize=True, seed=3)
    assert drawn != plan(50, num_epochs=2, num_samples_per_epoch=20, randomize=True, seed=4)
    assert len(set(drawn)) == 40


def test_more_samples_than_there_are_is_said() -> None:
    samples = [Sample(sample_id=str(i)) for i in range(3)]
    sampling = SamplingSection(num_samples_per_epoch=9)
    assert len(plan_samples(samples, sampling)) == 3
    assert plan_notes(samples, sampling) == (
        "dataset.sampling.num_samples_per_epoch is 9, the data set has 3: all are used",
    )


def test_inputs_carry_size_and_hash_and_paths_inside_the_run_are_relative(tmp_path: Path) -> None:
    page = pages(tmp_path / "run", "tmp/p.png") / "tmp/p.png"
    samples = [Sample(sample_id="page", image=page), Sample(sample_id="text", text="hé"), Sample(sample_id="page")]
    planned = plan_samples(samples[:2], SamplingSection(num_epochs=2))
    assert describe_inputs(planned, run_dir=tmp_path / "run") == [
        InputSample(
            sample_id="page",
            path="tmp/p.png",
            size_bytes=page.stat().st_size,
            sha256=hashlib.sha256(page.read_bytes()).hexdigest(),
        ),
        InputSample(sample_id="text", path=None, size_bytes=3, sha256=hashlib.sha256("hé".encode()).hexdigest()),
    ]


def test_the_vocabulary_is_found_where_configurations_keep_it() -> None:
    flat = json.loads('{"vocab_size": 10, "eos_token_id": [3, 4], "bos_token_id": 1}')
    assert vocabulary_of(flat) == Vocabulary(size=10, special_ids=frozenset([1, 3, 4]))
    assert vocabulary_of({"text_config": {"vocab_size": 7}}).size == 7
    with pytest.raises(ConfigError, match="has no vocab_size"):
        vocabulary_of({})


@pytest.mark.parametrize("name", ["../secret.png", "images/../../secret.png", "{tmp}/secret.png", "/etc/hostname"])
def test_a_list_does_not_leave_the_root_unless_absolute_paths_are_allowed(tmp_path: Path, name: str) -> None:
    root = tmp_path / "set"
    root.mkdir()
    (tmp_path / "secret.png").write_bytes(b"x")
    name = name.replace("{tmp}", str(tmp_path))
    filelist = tmp_path / "list.txt"
    filelist.write_text(f"{name}\n")
    dataset = DatasetSection(kind="omnidocbench", root=root, subset_filelist=filelist)
    with pytest.raises(ConfigError) as error:
        list_samples(dataset, data_kind="pages", vocabulary=None, scratch_dir=tmp_path)
    assert str(error.value) == (
        f"dataset.subset_filelist: {filelist}, line 1: leaves dataset.root (got {name!r}), "
        "allowed: paths below it, or absolute ones with dataset.allow_absolute=true"
    )
    allowed = replace(dataset, allow_absolute=True)
    if name.startswith("/"):
        (sample,) = list_samples(allowed, data_kind="pages", vocabulary=None, scratch_dir=tmp_path)
        assert sample.image == Path(name)
    else:
        with pytest.raises(ConfigError, match=r"leaves dataset\.root"):
            list_samples(allowed, data_kind="pages", vocabulary=None, scratch_dir=tmp_path)
