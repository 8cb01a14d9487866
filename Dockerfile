# The demo in a container. BASE is any Debian or Ubuntu with Python 3.11 or newer: the default is a CPU image; with a CUDA
# one, such as nvidia/cuda:12.8.1-runtime-ubuntu24.04, Python is installed and pip's default index brings CUDA torch:
#   docker build --build-arg BASE=nvidia/cuda:12.8.1-runtime-ubuntu24.04 --build-arg TORCH_INDEX= -t llm-perf:cuda .
ARG BASE=python:3.12-slim-bookworm@sha256:782412e85d0f0984994c290652577d4018aff08145c85b262bb63dc0c7522254
FROM ${BASE}
# Where torch comes from: empty is pip's default index.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN if ! command -v python3 >/dev/null; then \
      apt-get update && apt-get install -y --no-install-recommends python3 python3-venv && rm -rf /var/lib/apt/lists/*; \
    fi
WORKDIR /opt/llm-perf
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
COPY conf conf
RUN python3 -m venv /opt/venv \
    && if [ -n "${TORCH_INDEX}" ]; then /opt/venv/bin/pip install --no-cache-dir -c constraints.txt --index-url "${TORCH_INDEX}" torch; fi \
    && /opt/venv/bin/pip install --no-cache-dir -c constraints.txt '.[run]' \
    && useradd --create-home profiler
ENV PATH=/opt/venv/bin:$PATH
USER profiler
WORKDIR /work
ENTRYPOINT ["llm-perf"]
CMD ["--help"]
