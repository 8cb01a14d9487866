"""Memory snapshots of torch given to `llm-perf analyze`: tables, JSON, or a run directory with its report."""

import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path, PurePath

import msgspec

from llm_perf_opt.capture.allocations import DeviceMemory, MemorySnapshot, SnapshotDocument
from llm_perf_opt.capture.readers.memory_snapshot import read_memory_snapshot
from llm_perf_opt.core.manifest import RunManifest, write_json, write_manifest
from llm_perf_opt.core.records import Metric, StageFile, StageRecord
from llm_perf_opt.core.sections import Picture, Section, SectionTable, titled_table
from llm_perf_opt.core.units import format_bytes, format_ms, format_percent
from llm_perf_opt.pipeline.analyze.analyze_run import require_free
from llm_perf_opt.report.draw import steps_svg
from llm_perf_opt.report.write import write_reports
from llm_perf_opt.system.files import real_path
from llm_perf_opt.system.json_output import print_json
from llm_perf_opt.system.redact import Redactor
from llm_perf_opt.system.terminal import printable

STAGE = "memory_snapshot"
DOCUMENT = "memory_snapshot.json"
# On the page; the document has more.
ROWS = 60


def analyze_snapshots(files: Sequence[Path], output: Path | None, *, as_json: bool, top: int) -> None:
    """Read the files, print what they say, and write a run directory where one was requested."""
    if output is not None:
        require_free(output)
    document = SnapshotDocument(snapshots=tuple(read_memory_snapshot(path) for path in files))
    if output is not None:
        _write_run(real_path(output.expanduser()), files, document)
    if as_json:
        print_json(msgspec.to_builtins(document))
        return
    print("\n\n".join(_texts(document, top)))
    if output is not None:
        print(f"\nwritten: {output / 'report.html'}")


def _texts(document: SnapshotDocument, top: int) -> Iterator[str]:
    for snapshot in document.snapshots:
        if len(document.snapshots) > 1:
            yield printable(snapshot.path)
        for device in snapshot.devices:
            section = device_section(device, rows=top)
            yield "\n".join(printable(line) for line in (section.title, *section.paragraphs))
            yield from map(titled_table, section.tables)
        if not snapshot.devices:
            yield "The snapshot holds no memory and no events."
        if snapshot.notes:
            yield "\n".join(["notes", *(f"* {printable(note)}" for note in snapshot.notes)])


def device_section(
    device: DeviceMemory, *, rows: int = ROWS, source: str | None = None, picture: Picture | None = None
) -> Section:
    """What one device's memory was like: the peak first, then who held it."""
    peak = f"Peak allocated {format_bytes(device.peak_allocated_bytes)}{_when(device)}, with "
    peak += f"{format_bytes(device.reserved_at_peak_bytes)} reserved; peak reserved "
    peak += f"{format_bytes(device.peak_reserved_bytes)}."
    texts = [peak, _end(device), _counts(device)]
    texts += [
        f"Out of memory: {row.owner} asked for {format_bytes(row.requested_bytes)} with "
        f"{format_bytes(row.allocated_bytes)} allocated."
        for row in device.ran_out
    ]
    total = device.peak_allocated_bytes
    shown = device.owners[:rows]
    more = len(device.owners) - len(shown) + device.owners_left_out
    table = SectionTable(
        title="Live at the peak, by the line that owns it" + (f" ({more:,} more)" if more else ""),
        columns=("owner", "allocated by", "blocks", "size", "% of peak", "largest"),
        rows=tuple(
            (
                row.owner,
                "" if row.leaf == row.owner else row.leaf,
                row.blocks,
                format_bytes(row.size_bytes),
                100.0 * row.size_bytes / total if total else None,
                format_bytes(row.largest_bytes),
            )
            for row in shown
        ),
        source=source,
    )
    return Section(
        title=f"Memory of device {device.device}",
        paragraphs=tuple(texts),
        tables=(table,) if shown else (),
        picture=picture,
    )


def _when(device: DeviceMemory) -> str:
    if not device.events:
        return ""
    if device.peak_at_ns is None or device.length_ns is None:
        return f" after event {device.peak_event:,} of {device.events:,}"
    return f" at {format_ms(device.peak_at_ns / 1e6)} of {format_ms(device.length_ns / 1e6)}"


def _end(device: DeviceMemory) -> str:
    text = (
        f"At the end {format_bytes(device.last_allocated_bytes)} of {format_bytes(device.last_reserved_bytes)} reserved"
    )
    text += f" are allocated; rounding takes {format_bytes(device.rounding_bytes)}."
    if device.fragmentation is None:
        return f"{text} No reserved block is free."
    return (
        f"{text} {format_bytes(device.free_bytes)} are free in reserved segments, the largest free block is "
        f"{format_bytes(device.largest_free_bytes)}: fragmentation {format_percent(device.fragmentation)}."
    )


def _counts(device: DeviceMemory) -> str:
    return (
        f"{device.allocations:,} allocations and {device.frees:,} frees; the allocator asked the driver for memory "
        f"{device.segment_allocations:,} times and gave it back {device.segment_frees:,} times."
    )


def _write_run(run_dir: Path, files: Sequence[Path], document: SnapshotDocument) -> None:
    folder, source = run_dir / STAGE, f"{STAGE}/{DOCUMENT}"
    stage_files = [StageFile(role="memory_snapshot_json", path=write_json(folder / DOCUMENT, document))]
    sections, metrics = [], {}
    for number, snapshot in enumerate(document.snapshots):
        for device in snapshot.devices:
            picture = _draw(run_dir, number, device)
            if picture is not None:
                stage_files.append(StageFile(role="picture", path=run_dir / picture.path))
            section = device_section(device, source=source, picture=picture)
            sections.append(_of_file(section, snapshot) if len(document.snapshots) > 1 else section)
            how = f"memory snapshot, device {device.device}, requested sizes"
            key = f"peak_allocated_bytes_{number}_{device.device}"
            metrics[key] = Metric(value=device.peak_allocated_bytes, unit="byte", how=how, source=source)
    notes = tuple(note for snapshot in document.snapshots for note in snapshot.notes)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    stage = StageRecord(
        name=STAGE,
        status="ok",
        started_at=now,
        files=tuple(stage_files),
        metrics=metrics,
        notes=notes,
        sections=tuple(sections),
    )
    manifest = RunManifest(
        run_id=run_dir.name,
        created_at=now,
        status="ok",
        config={"analyze": {"files": [str(file) for file in files]}},
        environment={},
        stages=(stage,),
    )
    # As on every page that is made to be shared: frames and paths in a snapshot may hold a token.
    redactor = Redactor.of(os.environ)
    redactor.folder(run_dir)
    write_manifest(run_dir, manifest, redactor)
    write_reports(run_dir)


def _of_file(section: Section, snapshot: MemorySnapshot) -> Section:
    return Section(
        title=f"{section.title}, {PurePath(snapshot.path).name}",
        paragraphs=section.paragraphs,
        tables=section.tables,
        picture=section.picture,
    )


def _draw(run_dir: Path, number: int, device: DeviceMemory) -> Picture | None:
    """The curve, where the events have times."""
    if device.length_ns is None:
        return None
    lines = {
        "allocated": [(at, allocated) for at, allocated, _ in device.points],
        "reserved": [(at, reserved) for at, _, reserved in device.points],
    }
    path = f"{STAGE}/memory-{number}-{device.device}.svg"
    text = steps_svg(lines, length_ns=device.length_ns, title="Memory of torch's allocator")
    (run_dir / path).write_text(text, encoding="utf-8")
    return Picture(path=path, shows=f"bytes allocated and reserved on device {device.device} over the recording")
