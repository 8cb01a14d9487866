"""The sample a warm-up runs: the first one that can be read, or a made-up one of the same size."""

from llm_perf_opt.errors import ProfilingError
from llm_perf_opt.workload.bad_samples import bad_sample_errors, describe_error
from llm_perf_opt.workload.dataset import random_tokens
from llm_perf_opt.workload.models.base import Sample
from llm_perf_opt.workload.pages import PageStyle, write_page
from llm_perf_opt.workload.setup import Session

WARMUP_ID = "warmup"


def first_good_sample(session: Session) -> Sample:
    """The first planned sample the model can read."""
    first_error = ""
    for sample in dict.fromkeys(p.sample for p in session.workload.planned):
        try:
            session.model.prepare(sample)
        except bad_sample_errors() as error:
            first_error = first_error or f"{sample.sample_id} ({describe_error(error)})"
            continue
        return sample
    raise ProfilingError(f"no sample could be read, so nothing was measured; the first: {first_error}")


def synthetic_like(sample: Sample, session: Session) -> Sample:
    """A made-up sample of the same size, so that the warm-up shows the model nothing of the data it is timed on."""
    workload = session.workload
    seed = f"{workload.config.run.seed}/{WARMUP_ID}"
    if workload.vocabulary is not None:
        length = session.model.prompt_tokens(session.model.prepare(sample))
        return Sample(sample_id=WARMUP_ID, token_ids=random_tokens(workload.vocabulary, length, seed))
    if sample.image is None:
        return sample
    from PIL import Image

    with Image.open(sample.image) as page:
        style = PageStyle(width=page.width, height=page.height)
    return Sample(sample_id=WARMUP_ID, image=write_page(workload.scratch_dir / f"{WARMUP_ID}.png", style, seed=seed))
