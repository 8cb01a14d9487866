"""Results in the JSON format of `vllm bench serve --save-result --save-detailed`, a file for each level."""

from datetime import UTC, datetime

import msgspec

from llm_perf_opt.serving.load_records import LoadRun
from llm_perf_opt.serving.load_results import LATENCIES, LevelResult
from llm_perf_opt.serving.serving_config import LoadSection


def vllm_json(
    run: LoadRun, level: LevelResult, load: LoadSection, *, model: str | None, now: datetime | None = None
) -> bytes:
    """The keys and units of vLLM 0.32; what it has and we do not know is left out."""
    made = (now or datetime.now(UTC)).strftime("%Y%m%d-%H%M%S")
    counted = [record for record in run.records if not record.is_ramp]
    figures = {
        f"{kind}_{name}_ms": value
        for name in LATENCIES
        if (one := level.latencies.get(name)) is not None
        for kind, value in (
            ("mean", one.mean_ms),
            ("median", one.median_ms),
            ("std", one.std_ms),
            ("p90", one.p90_ms),
            ("p99", one.p99_ms),
        )
    }
    document = {
        "date": made,
        "endpoint_type": "openai-chat" if load.api == "chat" else "openai",
        "backend": "openai-chat" if load.api == "chat" else "openai",
        "label": "llm-perf bench",
        "model_id": model,
        "tokenizer_id": model,
        "num_prompts": level.sent,
        "request_rate": "inf" if level.rate is None else level.rate,
        "burstiness": load.burstiness if load.arrival == "gamma" else "inf" if load.arrival == "constant" else 1.0,
        "max_concurrency": level.concurrency if level.rate is None else load.max_concurrency,
        "duration": level.duration_s,
        "completed": level.completed,
        "failed": level.failed + level.unfinished,
        "total_input_tokens": level.input_tokens,
        "total_output_tokens": level.output_tokens,
        "request_throughput": level.requests_per_s,
        "request_goodput": level.goodput_per_s,
        "output_throughput": level.output_tokens_per_s,
        "total_token_throughput": level.total_tokens_per_s,
        "max_output_tokens_per_s": level.peak_output_tokens_per_s,
        "max_concurrent_requests": level.most_at_once,
        **figures,
        "input_lens": [record.prompt_tokens for record in counted],
        "output_lens": [record.output_tokens for record in counted],
        "ttfts": [record.ttft_s or 0.0 for record in counted],
        "itls": [list(record.gaps_s) for record in counted],
        "start_times": [record.started_s for record in counted],
        "latencies": [record.latency_s or 0.0 for record in counted],
        "errors": [record.error or "" for record in counted],
    }
    return msgspec.json.encode(document)
